"""What each JSON file of a run and of an evaluation holds. Fields that are not named here are kept as they are; a file
that lacks one of the others, or has it in a wrong shape, is not used."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, RootModel, ValidationError

from trustmopd.runs.layout import ASKED, CALIBRATION, CARD, COST, DIAGNOSIS, MANIFEST, SCORES
from trustmopd.util.files import read_json, write_json

Object = dict[str, Any]
Interval = Annotated[list[FiniteFloat], Field(min_length=2, max_length=2)] | None


class Shape(BaseModel):
    model_config = ConfigDict(extra="allow")


class ManifestModels(Shape):
    student: Object
    reference: Object | None
    teachers: dict[str, Object | None]
    own_references: dict[str, Object] = {}


class ManifestPrompts(Shape):
    fingerprint: str


class ManifestConfig(Shape):
    """A TrustMOPDConfig, of which every stage after training reads this."""

    allocation: str | dict[str, Any]  # 0.1.0: the rule's name, its parameters beside it
    gamma: FiniteFloat
    seed: int
    max_steps: int
    calibration_path: str | None = None
    run_dir: str | None = None
    output_dir: str | None = None


class ManifestEngine(Shape):
    """How the work was split between processes, and what the checkpoints look like."""

    name: str
    checkpoints: str
    processes: int


class Manifest(Shape):
    """Of a run, and of each of its checkpoints. Earlier releases wrote no fields with a default."""

    run: str
    models: ManifestModels
    prompts: ManifestPrompts
    config: ManifestConfig
    directory: str = ""
    versions: dict[str, str] = {}
    hardware: Object = {}
    engine: ManifestEngine | None = None
    planned_steps: int = 0
    experiment: list[str] = []
    resumed: list[Object] = []


class CalibrationFile(Shape):
    mu: Annotated[dict[str, Annotated[FiniteFloat, Field(gt=0)]], Field(min_length=1)]
    depends_on: Object
    spread: dict[str, FiniteFloat]
    tokens: int
    batches: int
    global_batch_size: int
    engine: str = "transformers"


class Time(Shape):
    seconds: FiniteFloat
    device_hours: FiniteFloat


class TrainingTime(Time):
    steps: int
    peak_memory_gib: FiniteFloat


class Cost(Shape):
    device: str = ""
    scored: dict[str, int] = {}
    elsewhere: dict[str, FiniteFloat] = {}
    training: TrainingTime | None = None
    calibration: Time | None = None
    evaluation: Time | None = None


class DomainDiagnosis(Shape):
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


class ReferenceDiagnosis(Shape):
    """One reference and the teachers that are measured from it. `distance` is how far the initial student is from it:
    the mean KL divergence on the student's candidates, in nats a response token."""

    source: str
    teachers: list[str]
    distance: FiniteFloat
    separates: bool | None
    verdict: str


class Diagnosis(Shape):
    """By domain, and by reference: teachers that grew from different models are judged apart. `references` is empty if
    the score needs none. `health` are metrics of a step over all rollouts, `warnings` what they say."""

    domains: list[DomainDiagnosis]
    references: list[ReferenceDiagnosis] = []
    held_out: bool
    separates: bool | None
    verdict: str
    health: dict[str, FiniteFloat] = {}
    warnings: list[str] = []


#: How the prompts of a benchmark were put to a checkpoint. Scores are compared only where these are the same.
ASKED_WITH = ("system", "chat_template_kwargs")


class BenchmarkScore(Shape):
    """Of one benchmark: counts and shares that its grader adds, and `ASKED_WITH`, are kept beside these."""

    domain: str
    score: FiniteFloat
    sd: FiniteFloat
    prompts: FiniteFloat


class Difference(Shape):
    """Overall score minus that of the row `against`; None where the two share no seed."""

    against: str
    overall: FiniteFloat | None
    sd: FiniteFloat | None
    n: int
    interval: Interval


class ScoreRow(Shape):
    """One row of scores. Each domain is a field of its own beside `overall`: a fraction, as all scores are."""

    __pydantic_extra__: dict[str, FiniteFloat]
    overall: FiniteFloat
    recovery: FiniteFloat | None
    sd: dict[str, FiniteFloat]
    interval: dict[str, Interval]
    seeds: list[int]
    benchmarks: dict[str, BenchmarkScore]
    difference: Difference | None = None
    #: In a run's own folder: which of its checkpoints was scored, and where its responses are.
    checkpoint: str | None = None
    folder: str | None = None


class Scores(RootModel[dict[str, ScoreRow]]):
    """Row → scores."""


class BenchmarkAsked(Shape):
    """What is asked of a benchmark: every prompt of `ids`, `samples` times. Only this is scored."""

    domain: str
    ids: list[str]
    samples: int
    malformed: list[str]


class EvaluationRecord(Shape):
    """A checkpoint, how it was sampled, and what it was asked."""

    method: str
    seed: int
    model: str | None
    benchmarks: dict[str, BenchmarkAsked]


class CardDecontamination(Shape):
    pools: dict[str, dict[str, int]]


class PromptCard(Shape):
    prompt_hash: str
    files: dict[str, str]
    categories: Object
    length_edges: list[int]
    decontamination: CardDecontamination


class CasePolicy(Shape):
    """What one policy says at a position; a teacher also has its score and weights."""

    __pydantic_extra__: dict[str, FiniteFloat]
    top: str
    mass: dict[str, FiniteFloat]


class CaseStudy(Shape):
    """One position of one rollout."""

    step: int
    rollout: int
    sample: int = 0
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


SCHEMAS: dict[str, type[BaseModel]] = {
    MANIFEST: Manifest,
    CALIBRATION: CalibrationFile,
    COST: Cost,
    DIAGNOSIS: Diagnosis,
    SCORES: Scores,
    ASKED: EvaluationRecord,
    CARD: PromptCard,
}
_VERSIONS = {ASKED: 2, MANIFEST: 2}
#: Earlier versions that are still read. In a manifest of 0.1.0 a rule's parameters are beside its name.
_OLDER = {MANIFEST: (1,)}


def read_file(path: Path, *, what: str, remedy: str, schema: type[BaseModel] | None = None) -> dict[str, Any]:
    """A file of the shape that it should have. `schema` is only needed for a file that may have any name."""
    versions = (_VERSIONS.get(path.name, 1), *_OLDER.get(path.name, ()))
    payload = read_json(path, what=what, remedy=remedy, schema_versions=versions)
    if wrong := _problem(schema or SCHEMAS[path.name], payload):
        raise ValueError(f"{what} {path} has {wrong}. {remedy}")
    return payload


def write_file(path: Path, payload: Mapping[str, Any], schema: type[BaseModel] | None = None) -> Path:
    """A payload of another shape is a mistake of ours, and is not written."""
    plain = json.loads(json.dumps(payload, default=str))
    if wrong := _problem(schema or SCHEMAS[path.name], plain):
        raise TypeError(f"{path.name} would have {wrong}")
    return write_json(path, plain, schema_version=_VERSIONS.get(path.name, 1))


def _problem(schema: type[BaseModel], payload: Mapping[str, Any]) -> str | None:
    """The first field that is missing or of a wrong shape, as the end of "It has …"."""
    try:
        schema.model_validate(payload, strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]
        field = ".".join(map(str, wrong["loc"]))
        return (
            f"no {field}" if wrong["type"] == "missing" else f"{field} = {wrong['input']!r:.60}: {wrong['msg'].lower()}"
        )
    return None
