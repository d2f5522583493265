"""How sure a score is: how many prompts it is from, and between which values it lies if others had been drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

Interval = tuple[float, float]
#: The gain over the initial student, beside the columns of a row.
GAIN = "gain"


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
    """`prompts` is 0 where nothing says how many. `intervals` are of 95%, over resampled prompts, by column; None where
    some of the draws have no value: of a recovery, where they leave no gap."""

    prompts: int = 0
    intervals: dict[str, Interval | None] = field(default_factory=dict)


def certainty_of(row: Mapping[str, Any]) -> Certainty:
    """Of a row of scores.json; what it does not have, or has in another shape, is not known."""
    try:
        known: Any = TypeAdapter(_Row).validate_python(row)
    except ValidationError:
        return Certainty()
    intervals = dict(known.get("interval", {}))
    if known.get("difference", {}).get("against") == "initial":
        intervals[GAIN] = known["difference"]["interval"]
    return Certainty(int(sum(asked["prompts"] for asked in known.get("benchmarks", {}).values())), intervals)


def over_seeds(every: Sequence[Certainty]) -> Certainty:
    """Of a mean over seeds that were scored on the same prompts. The mean of their intervals stands for its own, which
    is no wider."""
    if not every:
        return Certainty()
    shared = [column for column in every[0].intervals if all(column in each.intervals for each in every)]
    intervals: dict[str, Interval | None] = {}
    for column in shared:
        ends = [interval for each in every if (interval := each.intervals[column]) is not None]
        lows, highs = [low for low, _ in ends], [high for _, high in ends]
        whole = len(ends) == len(every)
        intervals[column] = (sum(lows) / len(lows), sum(highs) / len(highs)) if whole else None
    return Certainty(min(each.prompts for each in every), intervals)
