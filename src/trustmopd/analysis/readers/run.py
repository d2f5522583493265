"""A run directory, read for analysis. What is missing or damaged is noted, with the remedy."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from trustmopd.analysis.readers.method_name import method_name, settings_that_count
from trustmopd.analysis.readers.metrics_log import read_metrics
from trustmopd.analysis.readers.missing import Missing
from trustmopd.analysis.readers.score_rows import Certainty, certainty_of, numbers_of
from trustmopd.analysis.readers.token_records import TokenRecords, read_records
from trustmopd.messages import first_line
from trustmopd.rules import SCORED
from trustmopd.runs import RunDirectory, located, newest_checkpoint
from trustmopd.runs.layout import (
    CALIBRATION,
    CARD,
    CHECKPOINT,
    COST,
    MANIFEST,
    METRICS,
    RECORDS,
    SEED,
)
from trustmopd.runs.reference_rows import is_reference_row
from trustmopd.runs.schemas import read_parts


@dataclass(frozen=True)
class Reference:
    """What some teachers are measured from: the end of its path, and a piece of its fingerprint."""

    name: str
    mark: str
    teachers: list[str]

    def __str__(self) -> str:
        return f"{self.name} {self.mark}"


@dataclass(frozen=True)
class Run:
    """The files of one run, each read once. `missing` grows as they are read."""

    path: Path
    missing: list[Missing] = field(default_factory=list)

    def _note(self, what: str, how: str = "") -> None:
        self.missing.append(Missing(what, how))

    def _json(self, file: Path, what: str, how: str | None = None) -> dict[str, Any]:
        """The file's fields; empty if it is absent or damaged. Damage is noted; absence is noted only if `how` is
        given."""
        own, remedy = file.is_relative_to(self.path), f"It is left out. {how or ''}".strip()
        try:
            payload, said = read_parts(file, what=what, remedy=remedy)
            self.missing.extend(Missing(each if own else f"{file.parent}: {each}", remedy) for each in said)
            return payload
        except FileNotFoundError:
            if how:
                self._note(f"There is no {file.relative_to(self.path)} ({what}).", how)
        except (ValueError, OSError) as error:
            self._note(str(error))
        return {}

    @property
    def _files(self) -> RunDirectory:
        return RunDirectory(self.path)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return self._json(self._files.manifest, "which models and settings", "Training writes it when it begins.")

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.manifest.get("config", {})

    @cached_property
    def _models(self) -> dict[str, Any]:
        return self.manifest.get("models", {})

    @cached_property
    def calibration(self) -> dict[str, Any]:
        needed = self.config.get("allocation") in SCORED and self.config.get("calibrated", True)
        how = "Make it with `trustmopd calibrate RECIPE`." if needed else None
        return self._json(self._files.calibration, "mu of each teacher", how)

    @cached_property
    def cost(self) -> dict[str, Any]:
        """Includes the cost of the calibration, also if another run or `trustmopd calibrate` made it."""
        how = "Training writes it with every checkpoint and at its end."
        cost = self._json(self._files.cost, "what the run cost", how)
        used = self.config.get("calibration_path")
        if not cost or cost.get("calibration") or not used or not self.calibration:
            return cost
        bill = Path(used).with_name(COST)
        payer = Run((located(bill, self.path, self.manifest) or bill).parent)
        paid = payer._json(payer._files.cost, "what calibrating cost").get("calibration")
        if not paid:
            said = [f"{payer.path}: {each.what}" for each in payer.missing] or [f"It is not in {payer.path}."]
            how = "Keep the folder in which `trustmopd calibrate`, or the seed that calibrated, wrote it."
            self._note(f"The cost of calibration is unknown. {' '.join(said)}", how)
        return {**cost, "calibration": paid}

    @cached_property
    def diagnosis(self) -> dict[str, Any]:
        file, how = self._files.diagnosis, "Run `trustmopd diagnose RECIPE` again."
        return self._json(file, "calibrated scores before training", how) if file.exists() else {}

    @cached_property
    def _rows(self) -> dict[str, Mapping[str, Any]]:
        how = "Score the student with `trustmopd evaluate RECIPE`; tables of scores need it."
        return self._json(self._files.scores, "scores on the benchmarks", how)

    @cached_property
    def evaluation(self) -> dict[str, dict[str, float]]:
        """The rows of scores: method → domain scores, overall, recovery. Only numbers are kept."""
        newest = newest_checkpoint(self.path)
        found, said = numbers_of(self._rows, newest.name if newest else None)
        self.missing.extend(said)
        return found

    @cached_property
    def _own_row(self) -> str:
        """The student's row: the only one that is not a reference row, or the one named after the run."""
        rows = [name for name in self.evaluation if not is_reference_row(name)]
        names = (self.recipe.get("name"), self.path.name, self.config.get("allocation"), "student")
        known = rows if len(rows) == 1 else [name for name in names if name in rows]
        if rows and not known:
            self._note(f"{self._files.scores.name} has {len(rows)} rows, and none is named after this run.")
        return known[0] if known else ""

    @property
    def own_scores(self) -> dict[str, float]:
        return self.evaluation.get(self._own_row, {})

    @property
    def certainty(self) -> Certainty:
        """Of the student's own scores."""
        return certainty_of(self._rows.get(self._own_row, {}))

    @cached_property
    def recipe_text(self) -> str:
        try:
            return self._files.recipe.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""

    @cached_property
    def recipe(self) -> dict[str, Any]:
        try:
            loaded = yaml.safe_load(self.recipe_text)
        except yaml.YAMLError as error:
            self._note(f"{self._files.recipe.name} cannot be read ({first_line(error)}).")
            loaded = None
        return loaded if isinstance(loaded, dict) else {}

    @cached_property
    def _prompt_path(self) -> str | None:
        """The prompt set, if a recipe names one."""
        prompts = self.recipe.get("prompts")
        return str(prompts["path"]) if isinstance(prompts, dict) and prompts.get("path") else None

    @cached_property
    def logged(self) -> list[dict[str, float]]:
        found, said = read_metrics(self._files.metrics)
        self.missing.extend(said)
        return found

    @cached_property
    def logged_steps(self) -> list[dict[str, float]]:
        """The lines with means over steps, one for every `logging_steps` steps."""
        return [line for line in self.logged if "loss" in line]

    @property
    def last_step(self) -> int:
        """By the last line of any kind: if `logging_steps` does not divide the number of steps, the last ones have no
        line of their own."""
        return int(self.logged[-1]["step"]) if self.logged else 0

    @cached_property
    def decontamination(self) -> dict[str, dict[str, int]]:
        """Pool → its candidates, how many each rule removed, and how many were kept. From the card of the prompt
        set."""
        if self._prompt_path is None:
            return {}
        path = located(self._prompt_path, self.path, self.manifest) or Path(self._prompt_path)
        card = (path if os.path.isdir(path) else path.parent) / CARD
        return self._json(card, "the prompt set's card").get("decontamination", {}).get("pools", {})

    @cached_property
    def teachers(self) -> list[str]:
        return list(self._models.get("teachers", {})) or list(self.calibration.get("mu", {}))

    @cached_property
    def mu(self) -> dict[str, float]:
        """For every teacher, or for none: if only some scores were divided by mu, they could not be compared."""
        mu = self.calibration.get("mu", {}) if self.config.get("calibrated", True) else {}
        if not mu or set(mu) == set(self.teachers):
            return mu
        said = f"{CALIBRATION} has mu of {', '.join(mu)}, but the run's teachers are {', '.join(self.teachers)}"
        how = "Restore the file that the run was trained with."
        self._note(f"{said}: scores are shown raw.", how)
        return {}

    @property
    def gamma(self) -> float:
        return float(self.config.get("gamma", 7.0))

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def method(self) -> str:
        return method_name(self.config)

    @property
    def title(self) -> str:
        name = str(self.recipe.get("name") or self.path.resolve().name)
        return name if self.method in name.replace("-", " ") else f"{name}, {self.method}"

    @property
    def student(self) -> str:
        return Path(str(self._models.get("student", {}).get("source", "student"))).name

    @property
    def prompts(self) -> str:
        """A short name of the prompt set: from its path if a recipe gives one, otherwise from its fingerprint."""
        if self._prompt_path is not None:
            return Path(self._prompt_path).stem
        return f"prompts {str(self.manifest.get('prompts', {}).get('fingerprint', 'unknown'))[:6]}"

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the student and the prompts."""
        named = {"student": self._models.get("student", {}), "prompts": self.manifest.get("prompts", {})}
        return {what: str(each.get("fingerprint")) for what, each in named.items()}

    @property
    def teacher_marks(self) -> dict[str, str | None]:
        """Fingerprints of the teachers; None for a teacher that the rule did not load."""
        named = self._models.get("teachers", {})
        return {name: (named.get(name) or {}).get("fingerprint") for name in self.teachers}

    @cached_property
    def references(self) -> list[Reference]:
        """The distinct references that were asked."""
        common, own = self._models.get("reference"), self._models.get("own_references", {})
        found: dict[str, Reference] = {}
        for teacher in self.teachers:
            if start := own.get(teacher) or common:
                mark, name = str(start.get("fingerprint")), "/".join(Path(str(start.get("source"))).parts[-2:])
                found.setdefault(mark, Reference(name, mark[:8], [])).teachers.append(teacher)
        return list(found.values())

    @cached_property
    def setup(self) -> dict[str, Any]:
        """What makes two runs of one method two experiments: settings, the reference if there is one, and which weights
        of the student were trained (all of them, or an adapter)."""
        if self.manifest and "experiment" not in self.manifest:
            said = f"{MANIFEST} does not list the settings of the experiment, so runs are distinguished only by method."
            self._note(said, "Manifests of new runs list them.")
        settings = settings_that_count(self.config, self.manifest.get("experiment", ()))
        student = self._models.get("student", {})
        marks = [f"{each.mark} of {', '.join(each.teachers)}" for each in self.references]
        ingredients = {
            "reference": "; ".join(marks if len(marks) > 1 else [each.mark for each in self.references]) or None,
            "trainable_parameters": student.get("trainable_parameters"),
            "adapter": student.get("adapter"),
        }
        known = {name: value for name, value in ingredients.items() if value is not None}
        return settings | known

    @property
    def placement(self) -> str:
        """Where the frozen models lived; in brackets, teachers to which the recipe gives another place. It changes the
        cost of a run, not what is learnt."""
        common, teachers = str(self.config.get("teacher_placement", "resident")), self.recipe.get("teachers")
        given = teachers.items() if isinstance(teachers, dict) else ()
        places = {name: str(each.get("on") or common) for name, each in given if isinstance(each, dict)}
        own = [f"{name} {on}" for name, on in places.items() if on.replace("local", "resident") != common]
        return f"{common} ({', '.join(own)})" if own else common

    @property
    def finished(self) -> bool:
        return bool(self.logged) and self.last_step >= self.max_steps

    @property
    def max_steps(self) -> int:
        """As planned when training began, also if set by epochs; 0 if the manifest is damaged."""
        return int(self.manifest.get("planned_steps", 0))

    def records(self, *, candidates: bool = False) -> TokenRecords:
        return read_records(self.path, self.teachers, candidates=candidates)


def open_run(path: str | Path) -> Run:
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder. Give the run directory that `trustmopd train` made.")
    if not RunDirectory(path).exists():
        raise ValueError(
            f"{path} is not a run directory: it has none of {MANIFEST}, {METRICS}, {CALIBRATION} and {RECORDS}/. "
            f"Give the folder that `trustmopd train` made (its recipe's `output`, or a {SEED}* folder below it)."
        )
    return Run(path)


def find_runs(paths: Iterable[str | Path]) -> list[Run]:
    """The runs at `paths`. A folder that is not a run stands for all runs below it."""
    found: dict[Path, Run] = {}
    for path in map(Path, paths):
        folders = [path]
        if path.is_dir() and not RunDirectory(path).exists():
            manifests = (file.relative_to(path) for file in path.rglob(MANIFEST))
            runs = (file.parent for file in manifests if not any(part.startswith(CHECKPOINT) for part in file.parts))
            folders = sorted(path / run for run in runs)
            if not folders:
                raise ValueError(f"there is no run in {path}. Give folders that `trustmopd train` made.")
        for folder in folders:
            found.setdefault(folder.resolve(), open_run(folder))
    return list(found.values())
