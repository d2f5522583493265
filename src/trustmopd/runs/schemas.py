"""What each JSON file of a run and of an evaluation holds. Fields that are not named here are kept as they are."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, RootModel, ValidationError

from trustmopd.files import read_json, write_json
from trustmopd.runs.layout import ASKED, CALIBRATION, COST, DIAGNOSIS, MANIFEST, PROMPT_CARD, SCORES

Object = dict[str, Any]
Interval = Annotated[list[FiniteFloat], Field(min_length=2, max_length=2)] | None


class _Whole(BaseModel):
    """Has all its fields, or is left out."""

    model_config = ConfigDict(extra="allow")


class _Parts(_Whole):
    """Any of its fields may be absent: of an earlier release, or left out by `in_shape`."""


class Models(_Parts):
    student: Object = {}
    reference: Object | None = None
    teachers: dict[str, Object | None] = {}


class Config(_Parts):
    """A TrustMOPDConfig, of which every stage after training reads this."""

    allocation: str = ""
    gamma: FiniteFloat = 0.0
    seed: int = 0
    max_steps: int = 0
    calibration_path: str | None = None
    run_dir: str | None = None
    output_dir: str | None = None


class Manifest(_Parts):
    """Of a run, and of each of its checkpoints."""

    run: str = ""
    directory: str = ""
    versions: dict[str, str] = {}
    hardware: Object = {}
    models: Models = Models()
    prompts: Object = {}
    config: Config = Config()
    planned_steps: int = 0
    experiment: list[str] = []


class CalibrationFile(_Parts):
    mu: dict[str, Annotated[FiniteFloat, Field(gt=0)]] = {}
    depends_on: Object = {}


class Time(_Whole):
    seconds: FiniteFloat
    device_hours: FiniteFloat


class TrainingTime(Time):
    steps: int
    peak_memory_gib: FiniteFloat


class Scored(_Whole):
    teachers: int
    reference: int


class Cost(_Parts):
    device: str = ""
    scored: Scored | None = None
    elsewhere: dict[str, FiniteFloat] = {}
    training: TrainingTime | None = None
    calibration: Time | None = None
    evaluation: Time | None = None


class DiagnosedDomain(_Whole):
    domain: str
    rollouts: int
    score: dict[str, FiniteFloat]
    spread: dict[str, FiniteFloat]


class Diagnosis(_Parts):
    domains: list[DiagnosedDomain] = []
    verdict: str = ""


class BenchmarkScore(_Whole):
    """Of one benchmark: counts and shares that its grader adds are kept beside these."""

    domain: str
    score: FiniteFloat
    sd: FiniteFloat
    prompts: FiniteFloat


class Difference(_Whole):
    """Overall score minus that of the row `against`; None where the two share no seed."""

    against: str
    overall: FiniteFloat | None
    sd: FiniteFloat | None
    n: int
    interval: Interval


class ScoreRow(_Whole):
    """One row of scores.json. Each domain is a field of its own beside `overall`: a fraction, as all scores are."""

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


class BenchmarkAsked(_Whole):
    """What is asked of a benchmark: every prompt of `ids`, `samples` times. Only this is scored."""

    domain: str
    ids: list[str]
    samples: int
    malformed: list[str]


class EvaluationRecord(_Whole):
    """run.json: a checkpoint, how it was sampled, and what it was asked."""

    method: str
    seed: int
    model: str | None
    benchmarks: dict[str, BenchmarkAsked]


class Decontamination(_Parts):
    pools: dict[str, dict[str, int]] = {}


class PromptCard(_Parts):
    decontamination: Decontamination = Decontamination()


SCHEMAS: dict[str, type[BaseModel]] = {
    MANIFEST: Manifest,
    CALIBRATION: CalibrationFile,
    COST: Cost,
    DIAGNOSIS: Diagnosis,
    SCORES: Scores,
    ASKED: EvaluationRecord,
    PROMPT_CARD: PromptCard,
}
_VERSIONS = {ASKED: 2}


def read_file(path: Path, *, what: str, remedy: str) -> dict[str, Any]:
    """A whole file; a field of a wrong shape is an error that names it."""
    payload = read_json(path, what=what, remedy=remedy, schema_version=_VERSIONS.get(path.name, 1))
    if wrong := _first_error(path.name, payload):
        raise ValueError(f"{what} {path} has {_said(wrong)}. {remedy}")
    return payload


def write_file(path: Path, payload: dict[str, Any]) -> Path:
    """A payload of another shape is a mistake of ours, and is not written."""
    if wrong := _first_error(path.name, payload):
        raise TypeError(f"{path.name} would have {_said(wrong)}")
    return write_json(path, payload, schema_version=_VERSIONS.get(path.name, 1))


def in_shape(file: str, payload: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The payload without fields of a wrong shape, and a sentence on each of those: what is read later may be absent,
    but is what it should be."""
    kept, said = deepcopy(dict(payload)), []
    while wrong := _first_error(file, kept):
        said.append(f"{file} has {_said(wrong)}.")
        *parents, name = _left_out(SCHEMAS[file], wrong["loc"])
        holder: Any = kept
        for parent in parents:
            holder = holder[parent]
        del holder[name]
    return kept, said


def _first_error(file: str, payload: Mapping[str, Any]) -> Any:
    if file not in SCHEMAS:
        return None
    try:
        SCHEMAS[file].model_validate(payload, strict=True)
    except ValidationError as error:
        return error.errors()[0]
    return None


def _said(wrong: Any) -> str:
    place = ".".join(map(str, wrong["loc"]))
    if wrong["type"] == "missing":
        return f"no {place}"
    return f"{place} = {wrong['input']!r:.60}: {wrong['msg'].lower()}"


def _left_out(model: type[BaseModel], loc: tuple[Any, ...]) -> list[Any]:
    """The smallest part around an error that may be absent."""
    path = [loc[0]]
    inner = model.model_fields[loc[0]].annotation if loc[0] in model.model_fields else None
    if len(loc) > 1 and isinstance(inner, type) and issubclass(inner, _Parts):
        path += _left_out(inner, loc[1:])
    return path
