"""A pool without a common base: `math` of the world's own base, `code` and `if` of a second one, grown apart from it
with another seed and at less than half the size."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trustmopd.evaluation.methods import AVERAGE
from trustmopd.testbed.build_world import build_world
from trustmopd.testbed.experiment import FROM_STUDENT, METHODS, World
from trustmopd.testbed.machine import quiet
from trustmopd.testbed.models import Size
from trustmopd.testbed.supervised import Supervision

SECOND_BASE = "second-base"
SEED = 1
SIZE = Size(hidden=96, layers=3)
SUPERVISION = Supervision(steps=2400, batch_size=256, learning_rate=3e-3)
#: Teachers of the second base; the others are of the first.
OF_SECOND = ("code", "if")


def with_second_base(first: World, out: Path) -> "TwoBases":
    """The pool of both. The second base, its specialists and their card are built in a folder of `out`; what is
    finished there is not made again."""
    torch.set_num_threads(1)  # sums in two threads differ in the last bit from sums in one
    quiet()
    build_world(out / SECOND_BASE, SEED, device="cpu", size=SIZE, supervision=SUPERVISION)
    return TwoBases(first.root, second=World(out / SECOND_BASE))


@dataclass(frozen=True, kw_only=True)
class TwoBases(World):
    """The student starts from the first base. `second` is the world of the second."""

    second: World

    def fingerprint(self) -> dict[str, str]:
        return super().fingerprint() | {f"{SECOND_BASE}/{n}": mark for n, mark in self.second.fingerprint().items()}

    @property
    def teachers(self) -> dict[str, Any]:
        """Those of the second base are measured from it."""
        theirs = {n: {"model": self.second.teachers[n], "reference": self.second.reference} for n in OF_SECOND}
        return super().teachers | theirs

    @property
    def methods(self) -> dict[str, dict[str, Any]]:
        return {name: METHODS[name] for name in ("trust", "uniform", "routed", "response-level")} | FROM_STUDENT

    @property
    def references(self) -> tuple[str, ...]:
        """Models of two sizes have no average."""
        return tuple(row for row in super().references if row != AVERAGE)
