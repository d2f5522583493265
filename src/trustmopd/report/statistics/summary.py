"""Everything that is computed from one run, in one record. Tables, figures and the report use it."""

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from trustmopd.report.readers.contents import Missing
from trustmopd.report.readers.run import Certainty, Reference, Run
from trustmopd.report.readers.token_records import TokenRecords
from trustmopd.report.statistics.learning import Point, learning_curves
from trustmopd.report.statistics.over_training import not_numbers, series
from trustmopd.report.statistics.trust import (
    Change,
    margins,
    score_matrix,
    sharpest_changes,
    weights_by_group,
)
from trustmopd.runs import newest_checkpoint
from trustmopd.runs.guard import WARN, Guard, unsettled
from trustmopd.runs.layout import RECORDS
from trustmopd.runs.watched import Watched, watched
from trustmopd.util.files import without_nan
from trustmopd.util.stats import Spread


@dataclass(frozen=True)
class Summary:
    """`displacement`, `scores`, `allocation` and `margins` are by group of prompts, from token records; `series`,
    `watched` and `curves` (of accuracy) from the metrics of every step."""

    path: str
    method: str
    seed: int
    student: str
    prompts: str
    fingerprints: dict[str, str]
    setup: dict[str, Any]
    placement: str
    teachers: list[str]
    teacher_marks: dict[str, str | None]
    references: list[Reference]
    gamma: float
    calibrated: bool
    mu: dict[str, float]
    steps: int
    max_steps: int
    finished: bool
    rollouts: int
    tokens: int
    displacement: dict[str, dict[str, float]]
    scores: dict[str, dict[str, Spread]]
    allocation: dict[str, dict[str, Any]]
    margins: dict[str, list[float]]
    sharpest_changes: list[Change]
    series: dict[str, list[float]]
    watched: list[Watched]
    curves: dict[str, dict[str, list[Point]]]
    evaluation: dict[str, dict[str, float]]
    own_scores: dict[str, float]
    certainty: Certainty
    cost: dict[str, Any]
    calibration: dict[str, Any]
    diagnosis: dict[str, Any]
    decontamination: dict[str, dict[str, int]]
    warnings: list[str]
    missing: tuple[Missing, ...] = ()
    #: The title of the teachers; set when runs are compared (`comparison.py`).
    team: str = ""

    @property
    def stopped(self) -> str:
        """How far an unfinished run got; empty if it finished or logged no step."""
        return f"step {self.steps} of {self.max_steps}" if self.steps and not self.finished else ""

    def finite(self, name: str) -> list[float]:
        """The finite values of a series; empty if it was not logged."""
        return [value for value in self.series.get(name, []) if math.isfinite(value)]

    def mean_of(self, name: str) -> float | None:
        """Mean of a series over the steps; None if it was not logged."""
        values = self.finite(name)
        return sum(values) / len(values) if values else None

    def to_dict(self) -> dict[str, Any]:
        return without_nan(asdict(self))


def summarise_run(run: Run) -> Summary:
    records = run.records()
    teachers = run.teachers or records.teachers
    alarms = Guard(run.config.get("guard", WARN)).read(run.logged_steps)
    read = {field.name: getattr(run, field.name) for field in fields(Summary) if hasattr(Run, field.name)}
    computed = {
        "path": str(run.path),
        "teachers": teachers,
        "calibrated": bool(run.mu),
        "steps": run.last_step,
        "rollouts": len(records.rollouts),
        "tokens": sum(len(rollout.texts) for rollout in records.rollouts),
        "displacement": {group: {t: s.mean for t, s in by.items()} for group, by in score_matrix(records, {}).items()},
        "scores": score_matrix(records, run.mu),
        "allocation": weights_by_group(records),
        "margins": margins(records),
        "sharpest_changes": sharpest_changes(records) if len(teachers) > 1 else [],
        "series": series(run.logged_steps, teachers),
        "watched": watched(run.logged),
        "curves": learning_curves(run.logged),
        "warnings": [
            *not_numbers(run.logged_steps, teachers),
            *map(str, alarms),
            *unsettled(run.logged_steps),
            *records.damaged,
        ],
    }
    found = Summary(**{**read, **computed})
    # `run.missing` is complete only now, when everything else has been read.
    return replace(found, missing=(*run.missing, *_gaps(found, records)))


def _gaps(found: Summary, records: TokenRecords) -> list[Missing]:
    recorded = bool(records.rollouts)
    gaps = {
        Missing(
            f"The run stopped at {found.stopped}.",
            "Continue it with `trustmopd train RECIPE --resume`."
            if newest_checkpoint(Path(found.path))
            else "It has no checkpoint here. Train it again with `trustmopd train RECIPE`.",
        ): found.stopped,
        Missing(
            f"There are no readable token records ({RECORDS}/): no statistics by prompt, no viewer.",
            "Set training.record_allocation_every, 10 by default, to a number above 0 and train again.",
        ): not recorded,
        Missing(
            "The prompts have no labels, so it is unknown which teacher should lead where.",
            "Add a `domain` or `capabilities` column with teachers' names to the prompt set; trust ignores it.",
        ): recorded and not any(rollout.needs for rollout in records.rollouts),
        Missing(
            "The allocation rule scores no teacher, so there are no displacements and the viewer cannot recompute "
            "weights.",
            "`trustmopd diagnose RECIPE` measures scores before any training.",
        ): recorded and not found.scores,
        Missing(
            "There is only one teacher. It has all the weight, so allocation statistics say nothing.",
            "Give the recipe several teachers.",
        ): len(found.teachers) == 1,
    }
    return [gap for gap, applies in gaps.items() if applies]
