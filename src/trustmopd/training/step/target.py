"""The targets: one function for each row of `recipe.rules.TARGETS`, with its name, which makes the target of a step."""

from typing import Any

from torch import Tensor

from trustmopd.method import CandidateState, extrapolated_target, shift_target
from trustmopd.method.objective import TargetRule
from trustmopd.method.objective import geometric_mean as papers_own


def target_rule(given: Any, step: int) -> TargetRule:
    """`given` is a row's class with its parameters; `step` counts those before this one."""
    return _TARGETS[given.rule](given, step)


def geometric_mean(given: Any, step: int) -> TargetRule:
    return papers_own


def extrapolated(given: Any, step: int) -> TargetRule:
    share = min(1.0, (step + 1) / given.ramp) if given.ramp else 1.0
    factor = 1.0 + share * (given.factor - 1.0)
    return lambda at, weights: extrapolated_target(at.teacher_logp, _known(at.reference_logp), weights, factor)


def shift(given: Any, step: int) -> TargetRule:
    def target(at: CandidateState, weights: Tensor) -> Tensor:
        initial = _known(at.initial_logp)
        shares = at.speaks
        if given.weighted:
            shares = weights / weights.amax(dim=0).clamp_min(1e-30)
        return shift_target(at.teacher_logp, initial if given.endpoint else _known(at.reference_logp), initial, shares)

    return target


def _known(logp: Tensor | None) -> Tensor:
    assert logp is not None, "the configuration says which policies a target needs"
    return logp


_TARGETS = {rule.__name__: rule for rule in (geometric_mean, extrapolated, shift)}
