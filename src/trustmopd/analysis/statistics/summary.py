"""Everything that is computed of one run, in one record: what tables, figures and the report are made from."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from trustmopd.analysis.readers.method_name import setup_of
from trustmopd.analysis.readers.run import Missing, Run
from trustmopd.analysis.readers.token_records import TokenRecords
from trustmopd.analysis.statistics.certainty import Certainty
from trustmopd.analysis.statistics.drift import Drift, drift, drift_warnings, not_numbers, series
from trustmopd.analysis.statistics.trust import (
    Change,
    change_profile,
    margins,
    mean_displacement,
    score_matrix,
    sharpest_changes,
    summarise,
)
from trustmopd.files import without_nan
from trustmopd.runs.layout import RECORDS
from trustmopd.statistics import Spread


@dataclass(frozen=True)
class Summary:
    """`displacement`, `scores`, `allocation` and `margins` are by group of prompts, from token records; `series` and
    `drift` from the metrics of every step."""

    path: str
    method: str
    seed: int
    student: str
    prompts: str
    fingerprints: dict[str, str]
    setup: dict[str, Any]
    teachers: list[str]
    teacher_marks: dict[str, str | None]
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
    change_profile: list[float]
    sharpest_changes: list[Change]
    series: dict[str, list[float]]
    drift: dict[str, Drift]
    evaluation: dict[str, dict[str, float]]
    own_scores: dict[str, float]
    certainty: Certainty
    cost: dict[str, Any]
    calibration: dict[str, Any]
    diagnosis: dict[str, Any]
    decontamination: dict[str, dict[str, int]]
    warnings: list[str]
    missing: list[Missing]
    #: Names the teachers; set where runs are compared (`identity.py`).
    team: str = ""

    @property
    def stopped(self) -> str:
        """How far a run came that did not finish; nothing for one that did, or that logged no step."""
        return f"step {self.steps} of {self.max_steps}" if self.steps and not self.finished else ""

    def mean_of(self, name: str) -> float | None:
        """Mean over the steps of a series, of numbers; None where it was not logged."""
        values = [value for value in self.series.get(name, []) if math.isfinite(value)]
        return sum(values) / len(values) if values else None

    def to_dict(self) -> dict[str, Any]:
        return without_nan(asdict(self))


def summarise_run(run: Run, records: TokenRecords | None = None) -> Summary:
    """`records` where they were read already."""
    records = run.records() if records is None else records
    teachers = run.teachers or records.teachers
    several = len(teachers) > 1
    drifts = drift(run.steps, teachers) if run.mu else {}
    found = Summary(
        path=str(run.path),
        method=run.method,
        seed=run.seed,
        student=run.student,
        prompts=run.prompts,
        fingerprints=run.fingerprints,
        setup={**setup_of(run.config), **run.ingredients},
        teachers=teachers,
        teacher_marks=run.teacher_marks,
        gamma=run.gamma,
        calibrated=bool(run.mu),
        mu=run.mu,
        steps=run.last_step,
        max_steps=run.max_steps,
        finished=run.finished,
        rollouts=len(records.rollouts),
        tokens=records.tokens,
        displacement=mean_displacement(records),
        scores=score_matrix(records, run.mu),
        allocation=summarise(records),
        margins=margins(records),
        change_profile=change_profile(records) if several else [],
        sharpest_changes=sharpest_changes(records) if several else [],
        series=series(run.steps, teachers),
        drift=drifts,
        evaluation=run.evaluation,
        own_scores=run.own_scores,
        certainty=run.certainty,
        cost=run.cost,
        calibration=run.calibration,
        diagnosis=run.diagnosis,
        decontamination=run.decontamination,
        warnings=[
            *not_numbers(run.steps, teachers),
            *drift_warnings(drifts),
            *_shortened(records.damaged),
        ],
        missing=run.missing,
    )
    run.missing.extend(_what_is_missing(run, records, found))
    return found


def _shortened(damaged: list[str], shown: int = 5) -> list[str]:
    more = len(damaged) - shown
    return damaged if more <= 1 else [*damaged[:shown], f"{more} more files of token records are damaged."]


def _what_is_missing(run: Run, records: TokenRecords, found: Summary) -> list[Missing]:
    said = []
    if found.stopped:
        said.append(
            Missing(
                f"The run stopped at {found.stopped}.",
                "Continue it with `trustmopd train RECIPE --resume`.",
            )
        )
    if not records.rollouts:
        said.append(
            Missing(
                f"There are no readable token records ({RECORDS}/): no statistics by prompt, no viewer.",
                "Set training.record_allocation_every, 10 by default, to a number above 0 and train again.",
            )
        )
    elif not records.labelled:
        said.append(
            Missing(
                "The prompts have no labels, so nothing says which teacher should lead where.",
                "Add a `domain` or `capabilities` column with teachers' names to the prompt set; trust ignores it.",
            )
        )
    if records.rollouts and not records.scored:
        said.append(
            Missing(
                "The allocation rule scores no teacher, so there are no displacements and the viewer cannot recompute "
                "weights.",
                "`trustmopd diagnose RECIPE` measures scores before any training.",
            )
        )
    if len(found.teachers) == 1:
        said.append(
            Missing(
                "There is one teacher, which has all the weight: allocation statistics say nothing.",
                "Give the recipe several teachers.",
            )
        )
    if records.rollouts and not records.texts:
        said.append(
            Missing(
                "The token records are of an earlier release and hold no texts of candidates and prompts.",
                "The viewer shows token ids in their place; runs recorded now have them.",
            )
        )
    return said
