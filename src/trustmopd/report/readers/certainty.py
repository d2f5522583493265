"""How certain an evaluation's scores are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from trustmopd.runs.layout import INITIAL

Interval = tuple[float, float]
#: The gain over the initial student, beside the columns of a row.
GAIN = "gain"


@dataclass(frozen=True)
class Certainty:
    """`prompts` is 0 if their number is not recorded. An interval is None if some resamples have no value: without a
    gap there is no recovery."""

    prompts: int = 0
    intervals: dict[str, Interval | None] = field(default_factory=dict)


def certainty_of(row: Mapping[str, Any]) -> Certainty:
    """Of a row of scores; unknown for an empty row."""
    intervals = {column: _pair(interval) for column, interval in row.get("interval", {}).items()}
    difference = row.get("difference") or {}
    if difference.get("against") == INITIAL:
        intervals[GAIN] = _pair(difference["interval"])
    return Certainty(int(sum(asked["prompts"] for asked in row.get("benchmarks", {}).values())), intervals)


def _pair(interval: Sequence[float] | None) -> Interval | None:
    return None if interval is None else (interval[0], interval[1])


def over_seeds(every: Sequence[Certainty]) -> Certainty:
    """Of a mean over seeds that were scored on the same prompts: the mean of their intervals, which is at least as wide
    as the interval of the mean."""
    if not every:
        return Certainty()
    intervals: dict[str, Interval | None] = {}
    for column in every[0].intervals:
        if all(column in each.intervals for each in every):
            ends = [end for each in every if (end := each.intervals[column]) is not None]
            whole = len(ends) == len(every)
            intervals[column] = (fmean(low for low, _ in ends), fmean(high for _, high in ends)) if whole else None
    return Certainty(min(each.prompts for each in every), intervals)
