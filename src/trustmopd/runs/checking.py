"""Compare a JSON payload with its schema: what is wrong, in words, and which parts of it a report can still use."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


class Whole(BaseModel):
    """A report shows all of it or nothing."""

    model_config = ConfigDict(extra="allow")


class Parts(Whole):
    """A report shows the fields that are there. Fields without a default are needed to resume or to train."""


def problems(schema: type[BaseModel], payload: Mapping[str, Any]) -> list[str]:
    """Fields that are missing or of a wrong shape, each as the end of "It has …"."""
    return [_said(wrong) for wrong in _errors(schema, payload)]


def usable(schema: type[BaseModel], payload: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The payload without parts of a wrong shape, and the first problem of each of those and of each missing field."""
    kept = deepcopy(dict(payload))
    said: dict[tuple[Any, ...], str] = {}  # one for each part, whatever else is wrong in it
    for wrong in _errors(schema, payload):
        *parents, name = part = _left_out(schema, wrong["loc"])
        holder: Any = kept
        for parent in parents:
            holder = holder.get(parent, {})
        holder.pop(name, None)
        said.setdefault(tuple(part), _said(wrong))
    return kept, list(said.values())


def _errors(schema: type[BaseModel], payload: Mapping[str, Any]) -> list[Any]:
    try:
        schema.model_validate(payload, strict=True)
    except ValidationError as error:
        return list(error.errors())
    return []


def _said(wrong: Any) -> str:
    place = ".".join(map(str, wrong["loc"]))
    if wrong["type"] == "missing":
        return f"no {place}"
    return f"{place} = {wrong['input']!r:.60}: {wrong['msg'].lower()}"


def _left_out(model: type[BaseModel], loc: tuple[Any, ...]) -> list[Any]:
    """The smallest part around an error that may be absent."""
    path = [loc[0]]
    inner = model.model_fields[loc[0]].annotation if loc[0] in model.model_fields else None
    if len(loc) > 1 and isinstance(inner, type) and issubclass(inner, Parts):
        path += _left_out(inner, loc[1:])
    return path
