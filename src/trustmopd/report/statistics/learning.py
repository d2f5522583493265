"""Accuracy over the steps of a run, by domain, with intervals."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from trustmopd.runs.watched import PROMPTS, ROLLOUTS, accuracy
from trustmopd.util.stats import share_interval

#: The rollouts of this many logged steps are one point: those of a single step are few.
TOGETHER = 10


class Point(NamedTuple):
    step: int
    score: float
    low: float
    high: float


def learning_curves(lines: Iterable[Mapping[str, float]]) -> dict[str, dict[str, list[Point]]]:
    """Kind of prompts → domain → its curve."""
    graded: dict[str, dict[str, list[tuple[int, float, float]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for metric, count in line.items():
            kind, _, name = metric.partition("/")
            benchmark, _, domain = name.partition("/")
            if kind == PROMPTS and domain:
                of = ROLLOUTS if benchmark == ROLLOUTS else "held-out prompts"
                graded[of][domain].append((int(line["step"]), line[accuracy(name)] * count, count))
    return {
        kind: {domain: _curve(found, TOGETHER if kind == ROLLOUTS else 1) for domain, found in domains.items()}
        for kind, domains in graded.items()
    }


def _curve(graded: list[tuple[int, float, float]], together: int) -> list[Point]:
    """Benchmarks of one domain are added up at each step."""
    steps, points = sorted({step for step, _, _ in graded}), []
    for start in range(0, len(steps), together):
        window = steps[start : start + together]
        right, asked = (sum(each[place] for each in graded if each[0] in window) for place in (1, 2))
        points.append(Point(window[-1], right / asked, *share_interval(right / asked, asked)))
    return points
