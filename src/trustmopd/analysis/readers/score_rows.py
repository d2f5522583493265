"""Rows of scores.json: their numbers, which of them no distillation made, and how sure they are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from trustmopd.analysis.readers.missing import Missing
from trustmopd.runs.layout import SCORES

Interval = tuple[float, float]
#: Rows that no distillation made, with their titles; and those of single teachers.
REFERENCE_ROWS = {
    "initial": "initial student",
    "routed-teachers": "routed teachers",
    "parameter-average": "parameter average",
}
TEACHER_ROW = "teacher-"
#: The gain over the initial student, beside the columns of a row.
GAIN = "gain"


def is_reference_row(name: str) -> bool:
    return name in REFERENCE_ROWS or name.startswith(TEACHER_ROW)


def numbers_of(
    rows: Mapping[str, Mapping[str, Any]], newest: str | None
) -> tuple[dict[str, dict[str, float]], list[Missing]]:
    """Row → domain scores, overall, recovery, where they are numbers. `newest` is the run's newest checkpoint."""
    found, said = {}, []
    for name, row in rows.items():
        numbers = {key: value for key, value in row.items() if type(value) in (int, float)}
        found[name] = {key: value for key, value in numbers.items() if math.isfinite(value)}
        for key in numbers.keys() - found[name].keys():
            how = "It is left out; evaluate again with `trustmopd evaluate RECIPE`."
            said.append(Missing(f"{SCORES}: the score '{key}' of '{name}' is not a number ({row[key]}).", how))
        if (scored := row.get("checkpoint")) and newest not in (None, scored):
            how = "Evaluate again with `trustmopd evaluate RECIPE`; it says which folder to remove."
            said.append(Missing(f"The scores are of {scored}, but the run now has {newest}.", how))
    return {name: row for name, row in found.items() if "overall" in row}, said


class _Asked(TypedDict):
    prompts: float


class _Difference(TypedDict):
    against: str
    interval: tuple[FiniteFloat, FiniteFloat] | None


class _Row(TypedDict, total=False):
    benchmarks: dict[str, _Asked]
    interval: dict[str, tuple[FiniteFloat, FiniteFloat] | None]
    difference: _Difference


@dataclass(frozen=True)
class Certainty:
    """`prompts` is 0 where their number is not recorded. An interval is None where some resamples have no value: a
    recovery has none where they leave no gap."""

    prompts: int = 0
    intervals: dict[str, Interval | None] = field(default_factory=dict)


def certainty_of(row: Mapping[str, Any]) -> Certainty:
    """Of a row of scores.json; nothing is known where it has another shape."""
    try:
        known: Any = TypeAdapter(_Row).validate_python(row)
    except ValidationError:
        return Certainty()
    intervals = dict(known.get("interval", {}))
    if known.get("difference", {}).get("against") == "initial":
        intervals[GAIN] = known["difference"]["interval"]
    return Certainty(int(sum(asked["prompts"] for asked in known.get("benchmarks", {}).values())), intervals)


def over_seeds(every: Sequence[Certainty]) -> Certainty:
    """Of a mean over seeds that were scored on the same prompts: the mean of their intervals, which is no narrower than
    the interval of the mean."""
    if not every:
        return Certainty()
    intervals: dict[str, Interval | None] = {}
    for column in every[0].intervals:
        if all(column in each.intervals for each in every):
            ends = [end for each in every if (end := each.intervals[column]) is not None]
            whole = len(ends) == len(every)
            intervals[column] = (fmean(low for low, _ in ends), fmean(high for _, high in ends)) if whole else None
    return Certainty(min(each.prompts for each in every), intervals)
