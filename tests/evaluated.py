"""What tests of an evaluation share: the command, a model that echoes, and a set of sums."""

from pathlib import Path
from typing import Any

from trustmopd.evaluation.benchmarks import load_benchmarks
from trustmopd.evaluation.entries import Entry
from trustmopd.evaluation.sampling import Response, Sampling
from trustmopd.recipe import TeacherSource


class Echo:
    """Answers with the sample's number, counts what it is asked, and stops when told to."""

    def __init__(self, stop_after: int = 10**9) -> None:
        self.asked: list[tuple[str, int]] = []
        self.stop_after = stop_after

    def sample(self, requests: Any, sampling: Sampling) -> Any:
        for request in requests:
            if len(self.asked) == self.stop_after:
                raise KeyboardInterrupt
            self.asked.append((request.id, request.sample))
            yield Response(request, f"It is {request.sample + 1}.", 3, request.sample == 2, False, 0.1)


METHOD = Entry("m", TeacherSource(model="somewhere"), "m")


def sums(world: Path) -> Any:
    return load_benchmarks([str(world / "math_sums.jsonl")], {})
