"""What a comparison has finished, read back from disk: cells, reference rows and diagnoses, each whole or named."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    NotRequired,  # pydantic wants this one before Python 3.12
)

from pydantic import AfterValidator, FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from trustmopd.files import read_json
from trustmopd.runs.schemas import DiagnosedDomain
from trustmopd.testbed.experiment import METHODS, PROMPT_SETS
from trustmopd.testbed.tasks import DOMAINS

REFERENCES = "references.json"


@dataclass(frozen=True, order=True)
class Cell:
    prompts: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.prompts}/{self.method}/seed-{self.seed}"


def _one_of(known: Sequence[str]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in known:
            raise ValueError(f"it is none of {', '.join(known)}")
        return value

    return AfterValidator(check)


def _with(*names: str) -> AfterValidator:
    def check(scores: dict[str, float]) -> dict[str, float]:
        if missing := [name for name in names if name not in scores]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        return scores

    return AfterValidator(check)


class _Group(TypedDict):
    """Mean weights over the rollouts of some prompts; a margin where one of several teachers is meant."""

    weights: dict[str, FiniteFloat]
    relevant_mass: FiniteFloat
    margin: NotRequired[FiniteFloat]
    positive_margin: NotRequired[FiniteFloat]


class _Finished(TypedDict):
    prompts: Annotated[str, _one_of(PROMPT_SETS)]
    method: Annotated[str, _one_of(tuple(METHODS))]
    seed: NonNegativeInt
    scores: Annotated[dict[str, FiniteFloat], _with(*DOMAINS, "overall")]
    allocation: dict[str, _Group]
    max_weight: FiniteFloat
    seconds: FiniteFloat


class _References(TypedDict):
    scores: dict[str, Annotated[dict[str, FiniteFloat], _with(*DOMAINS, "overall", "recovery")]]
    scale: dict[str, Any]
    date: str


class _Diagnosis(TypedDict):
    domains: list[DiagnosedDomain]
    verdict: str


def load_cells(out: Path) -> list[dict[str, Any]]:
    remedy = "Remove the file: the cell is then run again."
    found = {path: _read(path, _Finished, "cell", remedy) for path in sorted((out / "cells").glob("*/*/seed-*.json"))}
    for path, cell in found.items():
        name = Cell(cell["prompts"], cell["method"], cell["seed"]).name
        if path != out / "cells" / f"{name}.json":
            raise ValueError(f"cell {path} is that of {name}. {remedy}")
    return list(found.values())


def read_references(out: Path) -> dict[str, Any]:
    return _read(out / REFERENCES, _References, "references", "Choose another folder with --out.")


def read_diagnosis(path: Path) -> dict[str, Any]:
    return _read(path, _Diagnosis, "diagnosis", "Remove the file: the pool is then diagnosed again.")


def records(out: Path) -> dict[str, dict[str, Any]]:
    """Everything that the tables of a comparison are made from, by name."""
    cells = {Cell(cell["prompts"], cell["method"], cell["seed"]).name: cell for cell in load_cells(out)}
    return {"the rows without distillation": read_references(out), **cells}


def _read(path: Path, shape: Any, what: str, remedy: str) -> dict[str, Any]:
    """All fields, those too that the shape does not name."""
    found = read_json(path, what=what, remedy=remedy)
    try:
        TypeAdapter(shape).validate_python(found, strict=True)
    except ValidationError as error:
        wrong = [(".".join(map(str, each["loc"])), each) for each in error.errors()]
        if missing := [place for place, each in wrong if each["type"] == "missing"]:
            raise ValueError(f"{what} {path} lacks {', '.join(missing)}. {remedy}") from None
        place, first = wrong[0]
        reason = first["msg"].removeprefix("Value error, ").lower()
        raise ValueError(f"{what} {path} has {place} = {first['input']!r:.60}: {reason}. {remedy}") from None
    return found
