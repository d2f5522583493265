"""One comparison in one folder: what its cells share, made once, and how a cell is trained and scored."""

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from studies.small_world.cells import FROM_STUDENT, Cell
from studies.small_world.machine import describe, made_by
from trustmopd.quickstart.experiment import Experiment, Scale, quiet, reproducibly
from trustmopd.recipe import Recipe
from trustmopd.recipe.rules import PARTS, RULES, TRUST
from trustmopd.runs import RunDirectory, newest_checkpoint
from trustmopd.training.stages import calibrate_recipe, diagnose_recipe
from trustmopd.util.files import check_writable, read_json, write_json

STUDY = "study.json"
#: Rows of which the pool is judged before training: their calibrated scores are not the same.
DIAGNOSED = {TRUST, TRUST + FROM_STUDENT}


@dataclass(frozen=True)
class Pool:
    """A student, its teachers and the rows of their comparison: a recipe's `allocation`, with its `target` and
    `emphasis` where they are not the paper's. `references` are the rows that need no distillation, `weights` a digest
    of every checkpoint."""

    student: str
    teachers: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]
    references: tuple[str, ...]
    weights: Mapping[str, str]

    def teachers_of(self, method: str) -> dict[str, Any]:
        if not method.endswith(FROM_STUDENT):
            return dict(self.teachers)
        return {
            name: {**teacher, "reference": "student"} if isinstance(teacher, dict) else teacher
            for name, teacher in self.teachers.items()
        }


@dataclass(frozen=True)
class Comparison:
    out: Path
    pool: Pool
    scale: Scale
    rollouts: int = 256  # that a diagnosis reads, for each domain

    def prepare(self, cells: list[Cell]) -> None:
        """Everything that `cells` share: the rows that need no distillation, mu, and what is known before training."""
        # Sums in two threads differ in the last bit from sums in one: the same seeds give the same numbers anywhere.
        torch.set_num_threads(1)
        self._write_study()
        with reproducibly():
            recipe = self._recipe("references", "singlecap", TRUST, 0, self.out)
            self._experiment(TRUST).evaluate_references(recipe, self.pool.references)
            for prompts, method in sorted({(cell.prompts, cell.method) for cell in cells}):
                self._calibration(prompts, method)
                if method in DIAGNOSED:
                    self.diagnosis(prompts, method)

    def run(self, cell: Cell) -> None:
        """Train one student and score it. A student that was trained to its end is not trained again."""
        quiet()
        run, experiment = cell.run(self.out), self._experiment(cell.method)
        recipe = self._recipe(cell.row, cell.prompts, cell.method, cell.seed, run.path)
        with reproducibly():
            if newest_checkpoint(run.path) is None:
                mu = self._calibration(cell.prompts, cell.method)
                experiment.train(recipe.model_copy(update={"calibration": mu}))
            if cell.method in DIAGNOSED:
                shutil.copy(self.diagnosis(cell.prompts, cell.method), run.diagnosis)
            experiment.evaluate_student(recipe)

    def _experiment(self, method: str) -> Experiment:
        return Experiment(self.out, self.scale, self.pool.student, self.pool.teachers_of(method))

    def _recipe(self, name: str, prompts: str, method: str, seed: int, output: Path) -> Recipe:
        settings = dict(self.pool.methods[method])
        others = {part: settings.pop(part) for part in PARTS if part in settings}
        recipe = self._experiment(method).recipe(name, prompts, settings, seed, output)
        return recipe.model_copy(update={part: PARTS[part][given["rule"]](**given) for part, given in others.items()})

    def _write_study(self) -> None:
        check_writable(self.out)
        settings = {"scale": asdict(self.scale), "world": dict(self.pool.weights)}
        if not (self.out / STUDY).is_file():
            date = datetime.now(UTC).date().isoformat()
            write_json(self.out / STUDY, {**settings, **made_by(), "date": date})
        stored = read_study(self.out)
        for name, value in settings.items():
            if stored.get(name) != value:
                raise ValueError(
                    f"{self.out} holds results made with {name} = {stored.get(name)}, not {value}: they would not be "
                    "comparable. Choose another folder with --out."
                )
        if describe(stored) != (here := describe(made_by())):
            warnings.warn(
                f"{self.out} was begun on {describe(stored)}; this is {here}. New cells are averaged with those: to "
                "keep them apart, choose another folder with --out.",
                stacklevel=2,
            )

    def _calibration(self, prompts: str, method: str) -> Path | None:
        """mu depends on neither seed, gamma nor granularity: measured once for a prompt set, score and references."""
        settings = self.pool.methods[method]
        if not RULES[settings.get("rule", TRUST)].scored or not settings.get("calibrated", True):
            return None
        name = f"{prompts}-{settings.get('score', 'displacement')}{_references(method)}"
        run = RunDirectory(self.out / "calibration" / name)
        if not run.calibration.is_file():
            calibrate_recipe(self._recipe("calibration", prompts, method, 0, run.path))
        return run.calibration

    def diagnosis(self, prompts: str, method: str) -> Path:
        """The calibrated score matrix before any training, and what it says of the pool."""
        run = RunDirectory(self.out / "diagnosis" / f"{prompts}{_references(method)}")
        if not run.diagnosis.is_file():
            recipe = self._recipe("diagnosis", prompts, method, 0, run.path)
            recipe = recipe.model_copy(update={"calibration": self._calibration(prompts, method)})
            diagnose_recipe(recipe, self.rollouts)
        return run.diagnosis


def read_study(out: Path) -> dict[str, Any]:
    return read_json(out / STUDY, what="study", remedy="Choose another folder with --out.")


def _references(method: str) -> str:
    return FROM_STUDENT if method.endswith(FROM_STUDENT) else ""
