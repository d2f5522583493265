"""Accuracy that was watched while a student was trained, from the metrics of its run."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from trustmopd.runs.layout import RunDirectory

#: Metrics: of how many responses an accuracy is (`watch_prompts/<benchmark>/<domain>`), how many responses have no
#: grade, and the mean over benchmarks, by which the best checkpoint is chosen.
PROMPTS, LOST, SCORE = "watch_prompts", "watch_lost", "watch_score"
#: What stands for a benchmark where the rollouts themselves are graded.
ROLLOUTS = "rollouts"


def accuracy(name: str) -> str:
    """The metric of a benchmark, or of `<benchmark>/<domain>`. That of rollouts is another one, which the guard leaves
    alone: the prompts of two steps differ."""
    return f"watch_{name}" if name.split("/")[0] == ROLLOUTS else f"watch/{name}"


class Watched(NamedTuple):
    """The mean score after so many steps, and the benchmarks that it is of."""

    step: int
    score: float
    benchmarks: tuple[str, ...]


def watched(lines: Iterable[Mapping[str, Any]]) -> list[Watched]:
    """From the lines of the metrics; step 0 is the initial student."""
    found = []
    for line in lines:
        if SCORE in line:
            names = (name.split("/") for name in line if name.startswith("watch/"))
            benchmarks = tuple(parts[1] for parts in names if len(parts) == 2)
            found.append(Watched(int(line["step"]), line[SCORE], benchmarks))
    return found


def best_of(scores: Iterable[Watched]) -> Watched | None:
    """The first of the highest; the initial student is no checkpoint."""
    return max((each for each in scores if each.step), key=lambda each: each.score, default=None)


def described(run: RunDirectory) -> str:
    """By which prompts which checkpoint is the best, and how the last one scores beside it; empty if nothing was
    watched."""
    scores = watched(_lines(run))
    best = best_of(scores)
    if best is None:
        return ""
    at_first = f"at first {scores[0].score:.1%}, " if scores[0].step == 0 else ""
    return (
        f"{at_first}best after step {best.step} with {best.score:.1%}, last after step {scores[-1].step} with "
        f"{scores[-1].score:.1%}, on watched prompts of {', '.join(best.benchmarks)}"
    )


def _lines(run: RunDirectory) -> Iterator[dict[str, Any]]:
    for line in run.metrics.read_text(encoding="utf-8").splitlines() if run.metrics.is_file() else ():
        with suppress(ValueError):  # the last line of a killed run may be incomplete
            yield json.loads(line)
