"""A pool without a common base: `math` of the world's own base, `code` and `if` of a second one, grown apart from it
with another seed and at less than half the size."""

from dataclasses import dataclass
from typing import Any

from studies.small_world.build_world import build_world
from studies.small_world.models import Size
from studies.small_world.supervised import Supervision
from trustmopd.quickstart.experiment import FROM_STUDENT, METHODS, World
from trustmopd.runs.reference_rows import AVERAGE

SECOND_BASE = "second-base"
SEED = 1
SIZE = Size(hidden=96, layers=3)
SUPERVISION = Supervision(steps=2400, batch_size=256, learning_rate=3e-3)
#: Teachers of the second base; the others are of the first.
OF_SECOND = ("code", "if")


@dataclass(frozen=True, kw_only=True)
class TwoBases(World):
    """The student starts from the first base. `second` is the world of the second, which `build` makes."""

    second: World

    def build(self) -> None:
        """The second base, its specialists and their card. What is finished is not made again."""
        build_world(self.second.root, SEED, device="cpu", size=SIZE, supervision=SUPERVISION)

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
