"""A run directory as analysis sees it: whatever is there is read, and whatever is not is said, with how to get it."""

import math
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from trustmopd.analysis.readers.method_name import method_name
from trustmopd.analysis.readers.metrics_log import read_metrics
from trustmopd.analysis.readers.token_records import TokenRecords, read_records
from trustmopd.analysis.statistics.certainty import Certainty, certainty_of
from trustmopd.files import read_json
from trustmopd.runs import RunDirectory, located, newest_checkpoint
from trustmopd.runs.layout import (
    CALIBRATION,
    CHECKPOINT,
    COST,
    DIAGNOSIS,
    EVALUATION,
    MANIFEST,
    METRICS,
    RECIPE,
    RECORDS,
    SCORES,
)
from trustmopd.runs.schemas import in_shape

REFERENCE_ROWS = ("initial", "routed-teachers", "parameter-average")


@dataclass(frozen=True)
class Missing:
    """Something that a report would show and this run does not have."""

    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.what} {self.how}"


def as_commands(text: str, run: str | Path) -> str:
    """Advice with the run's own recipe in place of RECIPE: what follows can be run, from where it was trained."""
    recipe = RunDirectory(Path(run)).recipe
    return text.replace("RECIPE", shlex.quote(str(recipe))) if os.path.isfile(recipe) else text


@dataclass(frozen=True)
class Run:
    """Files of one run, read once. `missing` grows while they are."""

    path: Path
    missing: list[Missing] = field(default_factory=list)

    def _json(self, name: str, what: str, how: str | None) -> dict[str, Any]:
        """The file's fields; none where it is absent or damaged, which is noted (absence only if `how` is given)."""
        path = self.path / name
        try:
            payload, said = in_shape(name, read_json(path, what=what, remedy=f"It is left out. {how or ''}".strip()))
            self.missing.extend(Missing(each, "It is left out.") for each in said)
            return payload
        except FileNotFoundError:
            if how:
                self.missing.append(Missing(f"There is no {name} ({what}).", how))
        except (ValueError, OSError) as error:
            self.missing.append(Missing(str(error), ""))
        return {}

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return self._json(MANIFEST, "which models and settings", "Training writes it when it begins.")

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.manifest.get("config", {})

    @cached_property
    def calibration(self) -> dict[str, Any]:
        needed = self.config.get("allocation") == "trust" and self.config.get("calibrated", True)
        how = "Make it with `trustmopd calibrate RECIPE`." if needed else None
        return self._json(CALIBRATION, "mu of each teacher", how)

    @cached_property
    def cost(self) -> dict[str, Any]:
        """With the calibration's cost, where another run or `trustmopd calibrate` paid for it."""
        how = "Training writes it with every checkpoint and at its end."
        cost = self._json(COST, "what the run cost", how)
        used = self.config.get("calibration_path")
        if not cost or cost.get("calibration") or not used or not self.calibration:
            return cost
        bill = Path(used).with_name(COST)
        payer = Run((located(bill, self.path, self.manifest) or bill).parent)
        paid = payer._json(COST, "what calibrating cost", None).get("calibration")
        if not paid:
            said = [f"{payer.path}: {each.what}" for each in payer.missing] or [f"It is not in {payer.path}."]
            how = "Keep the folder in which `trustmopd calibrate`, or the seed that calibrated, wrote it."
            self.missing.append(Missing(f"What calibrating cost is not known. {' '.join(said)}", how))
        return {**cost, "calibration": paid}

    @cached_property
    def diagnosis(self) -> dict[str, Any]:
        return self._json(DIAGNOSIS, "calibrated scores before training", None)

    @cached_property
    def _rows(self) -> dict[str, Mapping[str, Any]]:
        how = "Score the student with `trustmopd evaluate RECIPE`; tables of scores need it."
        rows = self._json(f"{EVALUATION}/{SCORES}", "scores on the benchmarks", how)
        return {name: row for name, row in rows.items() if isinstance(row, Mapping)}

    @cached_property
    def evaluation(self) -> dict[str, dict[str, float]]:
        """The rows of scores: method → domain scores, overall, recovery. Only numbers are kept."""
        found = {}
        for name, row in self._rows.items():
            numbers = {key: v for key, v in row.items() if type(v) in (int, float) and not key.endswith("_sd")}
            finite = {key: value for key, value in numbers.items() if math.isfinite(value)}
            for key in numbers.keys() - finite.keys():
                said = f"{SCORES}: the score '{key}' of '{name}' is not a number ({row[key]})."
                self.missing.append(Missing(said, "It is left out; evaluate again with `trustmopd evaluate RECIPE`."))
            if "overall" in finite:
                found[name] = finite
            if (scored := row.get("checkpoint")) and (newest := self._newest_checkpoint()) not in (None, scored):
                how = "Evaluate again with `trustmopd evaluate RECIPE`; it says which folder to remove."
                self.missing.append(Missing(f"The scores are of {scored}, and the run has {newest} since.", how))
        return found

    def _newest_checkpoint(self) -> str | None:
        """By name; None where there are none, or no longer."""
        newest = newest_checkpoint(self.path)
        return newest.name if newest is not None else None

    @cached_property
    def _own_row(self) -> str | None:
        """The student's: the only row that is no reference row, or the one named after the run."""
        rows = [name for name in self.evaluation if not is_reference_row(name)]
        for name in (self.recipe.get("name"), self.path.name, self.config.get("allocation"), "student"):
            if len(rows) > 1 and name in rows:
                return name
        if len(rows) > 1:
            self.missing.append(Missing(f"{SCORES} has {len(rows)} rows and none is named after this run.", ""))
        return rows[0] if len(rows) == 1 else None

    @property
    def own_scores(self) -> dict[str, float]:
        return self.evaluation.get(self._own_row or "", {})

    @property
    def certainty(self) -> Certainty:
        """Of the student's own scores."""
        return certainty_of(self._rows.get(self._own_row or "", {}))

    @cached_property
    def recipe_text(self) -> str:
        try:
            return RunDirectory(self.path).recipe.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""

    @cached_property
    def recipe(self) -> dict[str, Any]:
        try:
            loaded = yaml.safe_load(self.recipe_text)
        except yaml.YAMLError as error:
            self.missing.append(Missing(f"{RECIPE} cannot be read ({str(error).splitlines()[0]}).", ""))
            loaded = None
        return loaded if isinstance(loaded, dict) else {}

    @cached_property
    def logged(self) -> list[dict[str, float]]:
        found, said = read_metrics(RunDirectory(self.path).metrics)
        self.missing.extend(Missing(*each) for each in said)
        return found

    @cached_property
    def steps(self) -> list[dict[str, float]]:
        """The lines of metrics.jsonl that are means over steps, one for every `logging_steps` of them."""
        return [line for line in self.logged if "loss" in line]

    @property
    def last_step(self) -> int:
        """By any line: the last steps of a run have none of their own where `logging_steps` does not divide them."""
        return int(self.logged[-1]["step"]) if self.logged else 0

    @cached_property
    def decontamination(self) -> dict[str, dict[str, int]]:
        """Pool → its candidates, how many each rule removed, how many were kept: from the card of the prompt set."""
        prompts = self.recipe.get("prompts")
        named = prompts.get("path") if isinstance(prompts, dict) else None
        if named is None:
            return {}
        path = located(str(named), self.path, self.manifest) or Path(str(named))
        card = (path if os.path.isdir(path) else path.parent) / "card.json"
        if not os.path.isfile(card):  # nor where a folder is closed to us
            return {}
        try:
            content, said = in_shape(
                "card.json", read_json(card, what="the prompt set's card", remedy="It is left out.")
            )
        except (ValueError, OSError) as error:
            self.missing.append(Missing(str(error), ""))
            return {}
        self.missing.extend(Missing(f"{card.parent}: {each}", "It is left out.") for each in said)
        return content.get("decontamination", {}).get("pools", {})

    @cached_property
    def teachers(self) -> list[str]:
        return list(self.manifest.get("models", {}).get("teachers", {})) or list(self.calibration.get("mu", {}))

    @cached_property
    def mu(self) -> dict[str, float]:
        """Of every teacher, or of none: scores of which some are divided are not to be compared."""
        mu = self.calibration.get("mu", {}) if self.config.get("calibrated", True) else {}
        if not mu or set(mu) == set(self.teachers):
            return mu
        self.missing.append(
            Missing(
                f"{CALIBRATION} has mu of {', '.join(mu)}, and the run's teachers are {', '.join(self.teachers)}: "
                "scores are shown raw.",
                "Restore the file that the run was trained with.",
            )
        )
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
        return Path(str(self.manifest.get("models", {}).get("student", {}).get("source", "student"))).name

    @property
    def prompts(self) -> str:
        """A short name of the prompt set: of its path where a recipe gives one, of its content otherwise."""
        prompts = self.recipe.get("prompts")
        if isinstance(prompts, dict) and prompts.get("path"):
            return Path(str(prompts["path"])).stem
        return f"prompts {str(self.manifest.get('prompts', {}).get('fingerprint', 'unknown'))[:6]}"

    @property
    def fingerprints(self) -> dict[str, str]:
        """What the names of student and prompts stand for."""
        student = self.manifest.get("models", {}).get("student", {})
        prompts = self.manifest.get("prompts", {})
        return {"student": str(student.get("fingerprint")), "prompts": str(prompts.get("fingerprint"))}

    @property
    def teacher_marks(self) -> dict[str, str | None]:
        """What the teachers' names stand for; None for one that the rule did not load."""
        named = self.manifest.get("models", {}).get("teachers", {})
        return {name: (named.get(name) or {}).get("fingerprint") for name in self.teachers}

    @property
    def ingredients(self) -> dict[str, Any]:
        """What else makes a run another experiment: its reference, where one was asked, and what of the student was
        trained (all of it, or adapters of some size)."""
        models = self.manifest.get("models", {})
        reference = models.get("reference") or {}
        found = {
            "reference": str(reference["fingerprint"])[:8] if reference.get("fingerprint") else None,
            "trainable_parameters": models.get("student", {}).get("trainable_parameters"),
            "peft": self.recipe.get("peft"),
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def finished(self) -> bool:
        return bool(self.logged) and (self.max_steps <= 0 or self.last_step >= self.max_steps)

    @property
    def max_steps(self) -> int:
        """0 or less where nothing says how many: runs by epochs of an earlier release."""
        return int(self.manifest.get("planned_steps") or self.config.get("max_steps", 0))

    def records(self, *, candidates: bool = False) -> TokenRecords:
        return read_records(self.path, self.teachers, candidates=candidates)


def is_reference_row(name: str) -> bool:
    """A row of scores that no distillation made."""
    return name in REFERENCE_ROWS or name.startswith("teacher-")


def open_run(path: str | Path) -> Run:
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path} is no folder. Give the run directory that `trustmopd train` made.")
    if not RunDirectory(path).exists():
        raise ValueError(
            f"{path} holds none of {MANIFEST}, {METRICS}, {CALIBRATION} and {RECORDS}/, so it is no run directory. "
            "Give the folder that `trustmopd train` made (its recipe's `output`, or a seed-* folder below it)."
        )
    return Run(path)


def find_runs(paths: Iterable[str | Path]) -> list[Run]:
    """The runs at `paths` and below: a folder that is no run itself stands for all runs in it."""
    found: dict[Path, Run] = {}
    for path in map(Path, paths):
        if RunDirectory(path).exists() or not path.is_dir():
            found.setdefault(path.resolve(), open_run(path))
            continue
        below = sorted(
            manifest.parent
            for manifest in path.rglob(MANIFEST)
            if not any(part.startswith(CHECKPOINT) for part in manifest.relative_to(path).parts)
        )
        if not below:
            raise ValueError(f"{path} is no run directory and holds none. Give folders that `trustmopd train` made.")
        for folder in below:
            found.setdefault(folder.resolve(), open_run(folder))
    return list(found.values())
