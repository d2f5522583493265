"""What analysis takes from each JSON file of a run, by type. A field of another shape is said and left out, once, here:
whatever is read later may be absent, but is what it should be."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from trustmopd.runs.layout import CALIBRATION, COST, DIAGNOSIS, MANIFEST, PROMPT_CARD


class _Time(TypedDict):
    device_hours: FiniteFloat


class _Training(_Time):
    steps: int
    seconds: FiniteFloat
    peak_memory_gib: FiniteFloat


class _Scored(TypedDict):
    teachers: int
    reference: int


class DiagnosedDomain(TypedDict):
    domain: str
    rollouts: int
    score: dict[str, FiniteFloat]
    spread: dict[str, FiniteFloat]


_OBJECT = dict[str, Any]
#: Outer fields before inner ones: what has lost its parent is absent.
_SHAPES: dict[str, dict[str, Any]] = {
    MANIFEST: {
        "models": _OBJECT,
        "models.student": _OBJECT,
        "models.reference": _OBJECT | None,
        "models.teachers": dict[str, _OBJECT | None],
        "prompts": _OBJECT,
        "config": _OBJECT,
        "config.allocation": str,
        "config.gamma": FiniteFloat,
        "config.seed": int,
        "config.max_steps": int,
        "config.calibration_path": str | None,
        "config.run_dir": str | None,
        "config.output_dir": str | None,
        "planned_steps": int,
        "experiment": list[str],
        "directory": str,
    },
    CALIBRATION: {"mu": dict[str, Annotated[FiniteFloat, Field(gt=0)]], "depends_on": _OBJECT},
    COST: {
        "device": str,
        "scored": _Scored,
        "training": _Training | None,
        "calibration": _Time | None,
        "evaluation": _Time | None,
    },
    DIAGNOSIS: {"domains": list[DiagnosedDomain]},
    PROMPT_CARD: {"decontamination": _OBJECT, "decontamination.pools": dict[str, dict[str, int]]},
}


def in_shape(file: str, payload: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The payload without fields of a wrong shape, and a sentence on each of those."""
    kept, said = dict(payload), []
    for path, shape in _SHAPES.get(file, {}).items():
        *parents, name = path.split(".")
        holder: Any = kept
        for parent in parents:
            if parent in holder:
                holder[parent] = dict(holder[parent])  # the file's own content stays as it was read
            holder = holder.get(parent, {})
        if name not in holder:
            continue
        try:
            TypeAdapter(shape).validate_python(holder[name], strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join([path, *(str(part) for part in first["loc"] if not str(part).startswith("_"))])
            said.append(f"{file} has {place} = {first['input']!r:.60}: {first['msg'].lower()}.")
            del holder[name]
    return kept, said
