"""Every file of a run by name, where it is now, and every row of scores that is not a student's."""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
CALIBRATION = "calibration.json"
METRICS = "metrics.jsonl"
COST = "cost.json"
DIAGNOSIS = "diagnosis.json"
RECIPE = "recipe.yaml"
RECORDS = "allocation"
CHECKPOINTS = "checkpoints"
EVALUATION = "evaluation"
SCORES = "scores.json"
#: In the folder of a checkpoint's responses: what it was asked.
ASKED = "run.json"
#: Of a prompt set; a world that is built has one of its own.
CARD = "card.json"
ANALYSIS = "analysis.json"
REPORT = "report.html"
VIEWER = "viewer.html"
TABLES = "tables"
FIGURES = "figures"
CASES = "cases"
#: The parameter average of a recipe's teachers, in the recipe's output.
MERGED = "merged"
#: The prefix that transformers gives its checkpoints.
CHECKPOINT = "checkpoint-"
#: The prefix of the folder of one seed, where there are several.
SEED = "seed-"
#: Inside a folder of checkpoints: what was there before a run began. transformers uploads nothing that begins with _.
SET_ASIDE = "_set-aside"
#: Rows of scores that need no distillation: the initial student, all teachers routed, their average, each teacher.
INITIAL, ROUTED, AVERAGE = "initial", "routed-teachers", "parameter-average"
#: The prefix of a teacher's row.
TEACHER = "teacher-"
TITLES = {INITIAL: "initial student", ROUTED: "routed teachers", AVERAGE: "parameter average"}


def is_reference_row(name: str) -> bool:
    return name in TITLES or name.startswith(TEACHER)


def seed_folder(seed: int) -> str:
    return f"{SEED}{seed}"


def student_folder(row: str, seed: int) -> str:
    """Of a student's responses, below those of all rows; base and teachers have one folder each."""
    return f"{row}/{seed_folder(seed)}"


@dataclass(frozen=True)
class EntryDirectory:
    """What one checkpoint answered: a folder below that of an evaluation."""

    path: Path

    @property
    def record(self) -> Path:
        """Which checkpoint, how it was sampled, what it was asked."""
        return self.path / ASKED

    def responses(self, benchmark: str) -> Path:
        return self.path / f"{benchmark}.responses.jsonl"

    def graded(self, benchmark: str) -> Path:
        return self.path / f"{benchmark}.jsonl"


class _Inside:
    """A file or folder of a run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: "RunDirectory", owner: object) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunDirectory:
    """The folder of one run, and where each of its files is."""

    path: Path

    #: Which weights, prompts, settings, versions and machine; also in every checkpoint.
    manifest = _Inside(MANIFEST)
    #: mu; also in every checkpoint.
    calibration = _Inside(CALIBRATION)
    #: One line for every logged step.
    metrics = _Inside(METRICS)
    cost = _Inside(COST)
    diagnosis = _Inside(DIAGNOSIS)
    #: The resolved recipe, where a recipe was trained.
    recipe = _Inside(RECIPE)
    checkpoints = _Inside(CHECKPOINTS)
    evaluation = _Inside(EVALUATION)

    @property
    def scores(self) -> Path:
        return self.evaluation / SCORES

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"{CHECKPOINT}{step}"

    def records(self, step: int) -> Path:
        """The token records of a step."""
        return self.path / RECORDS / f"step-{step:06d}.parquet"

    def recorded(self) -> dict[int, Path]:
        """The files of token records, by step."""
        files = sorted((self.path / RECORDS).glob("step-*.parquet"))
        return {int(file.stem.partition("-")[2]): file for file in files}

    def exists(self) -> bool:
        """Whether a run has written anything here."""
        return any((self.path / name).exists() for name in (MANIFEST, METRICS, CALIBRATION, RECORDS))


def folder_of(run: Any) -> Path:
    """Of a run that is given by its folder, or by its trainer."""
    return run.files.run.path if hasattr(run, "files") else Path(run)


def as_commands(text: str, run: str | Path) -> str:
    """Advice with RECIPE replaced by the run's own recipe, or without it, if it has none. Commands work in the folder
    where the run was trained."""
    run, recipe = shlex.quote(str(run)), RunDirectory(Path(run)).recipe
    if os.path.isfile(recipe):
        return text.replace("RECIPE", shlex.quote(str(recipe)))
    text = text.replace("trustmopd evaluate RECIPE", f"trustmopd evaluate {run} --benchmarks FILE")
    return re.sub(r"`trustmopd (\w+) RECIPE ?([^`]*)`", r"your script (`\1 \2`)", text).replace(" `)", "`)")


def located(path: str | Path, run: Path, manifest: Mapping[str, Any]) -> Path | None:
    """Where `path`, as the run in folder `run` named it when it was trained, is now: next to the run, if both moved
    together; else where it was; else in the working directory. None if it is in none of these, as a Hub id."""
    tries = [run.resolve() / beside] if (beside := _beside(path, manifest)) else []
    tries += [Path(manifest.get("directory") or "", path), Path(path)]
    # `Path.exists` would raise on a folder that we may not open.
    return next((Path(os.path.normpath(each)) for each in tries if os.path.exists(each)), None)


def searched(manifest: Mapping[str, Any]) -> str:
    """For an error: where `located` looked."""
    trained = f", in {manifest['directory']}, where it was trained" if manifest.get("directory") else ""
    return f"It was looked for next to the run{trained}, and in the current folder, {Path.cwd()}."


def _beside(path: str | Path, manifest: Mapping[str, Any]) -> str | None:
    """The path from the run's folder to `path`. Earlier releases did not record the directory of training: there, the
    two can be related only if both are absolute or both relative."""
    config = manifest.get("config") or {}
    folder, directory = config.get("run_dir") or config.get("output_dir"), manifest.get("directory")
    if not folder or (directory is None and Path(folder).is_absolute() != Path(path).is_absolute()):
        return None
    return os.path.relpath(Path(directory or "/", path), Path(directory or "/", folder))
