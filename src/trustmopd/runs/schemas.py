"""What each JSON file of a run and of an evaluation holds. Fields that are not named here are kept as they are."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, FiniteFloat, RootModel

from trustmopd.runs.checking import Parts, Whole, problems, usable
from trustmopd.runs.layout import ANALYSIS, ASKED, CALIBRATION, CARD, COST, DIAGNOSIS, MANIFEST, SCORES
from trustmopd.util.files import read_json, write_json

Object = dict[str, Any]
Interval = Annotated[list[FiniteFloat], Field(min_length=2, max_length=2)] | None


class Models(Parts):
    student: Object
    reference: Object | None
    teachers: dict[str, Object | None]
    own_references: dict[str, Object] = {}


class Prompts(Parts):
    fingerprint: str


class Config(Parts):
    """A TrustMOPDConfig, of which every stage after training reads this."""

    allocation: str | dict[str, Any]  # 0.1.0: the rule's name, its parameters beside it
    gamma: FiniteFloat
    seed: int
    max_steps: int
    calibration_path: str | None = None
    run_dir: str | None = None
    output_dir: str | None = None


class Engine(Whole):
    """How the work was split between processes, and what the checkpoints look like."""

    name: str
    checkpoints: str
    processes: int


class Manifest(Parts):
    """Of a run, and of each of its checkpoints. Earlier releases wrote no fields with a default."""

    run: str
    models: Models
    prompts: Prompts
    config: Config
    directory: str = ""
    versions: dict[str, str] = {}
    hardware: Object = {}
    engine: Engine | None = None
    planned_steps: int = 0
    experiment: list[str] = []
    resumed: list[Object] = []


class CalibrationFile(Parts):
    mu: Annotated[dict[str, Annotated[FiniteFloat, Field(gt=0)]], Field(min_length=1)]
    depends_on: Object
    spread: dict[str, FiniteFloat]
    tokens: int
    batches: int
    global_batch_size: int
    engine: str = "transformers"


class Time(Whole):
    seconds: FiniteFloat
    device_hours: FiniteFloat


class TrainingTime(Time):
    steps: int
    peak_memory_gib: FiniteFloat


class Cost(Parts):
    device: str = ""
    scored: dict[str, int] = {}
    elsewhere: dict[str, FiniteFloat] = {}
    training: TrainingTime | None = None
    calibration: Time | None = None
    evaluation: Time | None = None


class DomainDiagnosis(Whole):
    """One group of prompts. Means are over its response tokens. `spread` is the standard deviation (n − 1) of the mean
    scores of its responses. `leads` is the share of responses in which the domain's own teacher has the largest mean
    weight; None if no teacher has the domain's name."""

    domain: str
    rollouts: int
    tokens: int
    raw: dict[str, FiniteFloat]
    score: dict[str, FiniteFloat]
    spread: dict[str, FiniteFloat]
    weight: dict[str, FiniteFloat]
    leads: FiniteFloat | None

    @property
    def leader(self) -> str:
        """The teacher that scores highest on these prompts."""
        return max(self.score, key=self.score.__getitem__)


class ReferenceDiagnosis(Whole):
    """One reference and the teachers that are measured from it. `distance` is how far the initial student is from it:
    the mean KL divergence on the student's candidates, in nats a response token."""

    source: str
    teachers: list[str]
    distance: FiniteFloat
    separates: bool | None
    verdict: str


class Diagnosis(Parts):
    """By domain, and by reference: teachers that grew from different models are judged apart. `references` is empty if
    the score needs none."""

    domains: list[DomainDiagnosis]
    references: list[ReferenceDiagnosis] = []
    held_out: bool
    separates: bool | None
    verdict: str


class BenchmarkScore(Whole):
    """Of one benchmark: counts and shares that its grader adds are kept beside these."""

    domain: str
    score: FiniteFloat
    sd: FiniteFloat
    prompts: FiniteFloat


class Difference(Whole):
    """Overall score minus that of the row `against`; None where the two share no seed."""

    against: str
    overall: FiniteFloat | None
    sd: FiniteFloat | None
    n: int
    interval: Interval


class ScoreRow(Whole):
    """One row of scores. Each domain is a field of its own beside `overall`: a fraction, as all scores are."""

    __pydantic_extra__: dict[str, FiniteFloat]
    overall: FiniteFloat
    recovery: FiniteFloat | None
    sd: dict[str, FiniteFloat]
    interval: dict[str, Interval]
    seeds: list[int]
    benchmarks: dict[str, BenchmarkScore]
    difference: Difference | None = None
    #: In a run's own folder: which of its checkpoints was scored.
    checkpoint: str | None = None


class Scores(RootModel[dict[str, ScoreRow]]):
    """Row → scores."""


class BenchmarkAsked(Whole):
    """What is asked of a benchmark: every prompt of `ids`, `samples` times. Only this is scored."""

    domain: str
    ids: list[str]
    samples: int
    malformed: list[str]


class EvaluationRecord(Whole):
    """A checkpoint, how it was sampled, and what it was asked."""

    method: str
    seed: int
    model: str | None
    benchmarks: dict[str, BenchmarkAsked]


class Decontamination(Parts):
    pools: dict[str, dict[str, int]]


class PromptCard(Parts):
    prompt_hash: str
    files: dict[str, str]
    categories: Object
    length_edges: list[int]
    decontamination: Decontamination


class CasePolicy(Whole):
    """What one policy says at a position; a teacher also has its score and weights."""

    __pydantic_extra__: dict[str, FiniteFloat]
    top: str
    mass: dict[str, FiniteFloat]


class CaseStudy(Whole):
    """One position of one rollout."""

    step: int
    rollout: int
    position: int
    prompt: str
    prefix: str
    sampled: str
    num_candidates: int
    gamma: FiniteFloat
    sets: dict[str, list[str]]
    policies: dict[str, CasePolicy]
    target: dict[Literal["token", "response"], dict[str, FiniteFloat]]
    difference: FiniteFloat


class Analysis(Parts):
    """Written for users' own scripts. `Summary` in `report/statistics` has all of its fields."""

    path: str
    method: str
    seed: int
    teachers: list[str]
    rollouts: int


SCHEMAS: dict[str, type[BaseModel]] = {
    MANIFEST: Manifest,
    CALIBRATION: CalibrationFile,
    COST: Cost,
    DIAGNOSIS: Diagnosis,
    SCORES: Scores,
    ASKED: EvaluationRecord,
    CARD: PromptCard,
    ANALYSIS: Analysis,
}
_VERSIONS = {ASKED: 2}


def read_file(path: Path, *, what: str, remedy: str, schema: type[BaseModel] | None = None) -> dict[str, Any]:
    """A whole file. A field that is missing or of a wrong shape is an error that names it. `schema` is only needed for
    a file that may have any name."""
    payload = read_json(path, what=what, remedy=remedy, schema_version=_VERSIONS.get(path.name, 1))
    if wrong := problems(schema or SCHEMAS[path.name], payload):
        raise ValueError(f"{what} {path} has {wrong[0]}. {remedy}")
    return payload


def read_parts(path: Path, *, what: str, remedy: str) -> tuple[dict[str, Any], list[str]]:
    """For reports: what can be used of a file, and a sentence on each part that cannot."""
    payload = read_json(path, what=what, remedy=remedy, schema_version=_VERSIONS.get(path.name, 1))
    return in_shape(path.name, payload)


def write_file(path: Path, payload: Mapping[str, Any], schema: type[BaseModel] | None = None) -> Path:
    """A payload of another shape is a mistake of ours, and is not written."""
    plain = json.loads(json.dumps(payload, default=str))
    if wrong := problems(schema or SCHEMAS[path.name], plain):
        raise TypeError(f"{path.name} would have {wrong[0]}")
    return write_json(path, plain, schema_version=_VERSIONS.get(path.name, 1))


def in_shape(file: str, payload: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What can be used of the payload of `file`, and a sentence on each part that cannot."""
    kept, wrong = usable(SCHEMAS[file], payload)
    return kept, [f"{file} has {each}." for each in wrong]
