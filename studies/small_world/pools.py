"""The pools that are compared: whose teachers, and from what each is measured."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from studies.small_world.build_world import build_world
from studies.small_world.cells import METHODS, OF_TWO_BASES
from studies.small_world.comparison import Pool
from studies.small_world.models import Size
from studies.small_world.reinforcement import REGIMES
from studies.small_world.supervised import Supervision
from studies.small_world.worlds import checkpoint, digests_of
from trustmopd.quickstart.experiment import REFERENCES
from trustmopd.quickstart.shipped import MODELS, SHIPPED
from trustmopd.quickstart.tasks import DOMAINS
from trustmopd.runs.layout import AVERAGE

SECOND_BASE = "second-base"
WORLDS, SECOND_SPECIALISTS = "worlds", "second-specialists"
SECOND_SEED = 1
SECOND_SIZE = Size(hidden=96, layers=3)
SECOND_SUPERVISION = Supervision(steps=2400, batch_size=256, learning_rate=3e-3)
_ON_CPU: dict[str, Any] = {"device": "cpu", "evaluation_prompts": 200}
#: Teachers of the second base; `math` is of the first.
OF_SECOND = ("code", "if")


def one_base(world: Path = SHIPPED, methods: Mapping[str, Mapping[str, Any]] = METHODS) -> Pool:
    teachers = {name: str(checkpoint(name, world)) for name in DOMAINS}
    return Pool(str(checkpoint("reference", world)), teachers, methods, (*REFERENCES, AVERAGE), _weights(world))


def two_bases(world: Path, out: Path) -> Pool:
    """The student and `math` are of `world`. `code` and `if` grew from another base, with another seed and at less than
    half the size, and are measured from it. That base's world is below `out`; what is not there yet is built."""
    second = out / SECOND_BASE
    build_world(
        second, SECOND_SEED, device="cpu", size=SECOND_SIZE, supervision=SECOND_SUPERVISION, evaluation_prompts=1000
    )
    base, first = str(checkpoint("reference", second)), one_base(world)
    others = {name: {"model": str(checkpoint(name, second)), "reference": base} for name in OF_SECOND}
    weights = {**first.weights, **{f"{SECOND_BASE}/{name}": mark for name, mark in _weights(second).items()}}
    # Models of two sizes have no average.
    return Pool(first.student, {**first.teachers, **others}, OF_TWO_BASES, REFERENCES, weights)


def drifting(out: Path, regime: str, methods: Mapping[str, Mapping[str, Any]]) -> Pool:
    """Specialists of the shipped reference by another regime of RL. Their world is below `out`, and built if it is not
    there yet, as are the next pool's."""
    build_world(out / WORLDS / regime, reinforcement=REGIMES[regime], reference_of=SHIPPED, **_ON_CPU)
    return one_base(out / WORLDS / regime, methods)


def six_teachers(out: Path, methods: Mapping[str, Mapping[str, Any]]) -> Pool:
    """Each of the shipped specialists, and another by the same RL from another seed."""
    world = out / WORLDS / SECOND_SPECIALISTS
    build_world(world, SECOND_SEED, reference_of=SHIPPED, **_ON_CPU)
    first = one_base(SHIPPED, methods)
    others = {f"{name}-2": str(checkpoint(name, world)) for name in DOMAINS}
    weights = {**first.weights, **{f"{SECOND_SPECIALISTS}/{name}": mark for name, mark in _weights(world).items()}}
    return replace(first, teachers={**first.teachers, **others}, weights=weights)


def _weights(world: Path) -> dict[str, str]:
    return {name: digests_of(name, world)["model.safetensors"][:16] for name in MODELS}
