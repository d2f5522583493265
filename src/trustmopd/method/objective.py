"""The paper's Algorithm 2 at the positions of one batch: scores → calibrated scores → weights → mixed target → loss.

Read this file first. Rollouts and model forwards come before it (`training/`), and averaging over responses comes after
it (`loss.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trustmopd.method.allocation import check_gamma, degenerate_tokens, response_level, trust_weights
from trustmopd.method.axes import CandidateState
from trustmopd.method.calibration import calibrated_scores
from trustmopd.method.loss import reverse_kl
from trustmopd.method.scores import displacement, negative_entropy, teacher_likelihood, teacher_student_kl
from trustmopd.method.target import mixed_target

ScoreRule = Callable[[CandidateState], Tensor]
AllocationRule = Callable[[CandidateState, Tensor | None], Tensor]


def _displacement(at: CandidateState) -> Tensor:
    if at.reference_logp is None:
        raise ValueError(
            "displacement is measured from the reference, but reference_logp is None. Score the reference."
        )
    return displacement(at.teacher_logp, at.reference_logp)


SCORES: dict[str, ScoreRule] = {
    "displacement": _displacement,
    "likelihood": lambda at: teacher_likelihood(at.teacher_logp, at.candidate_ids, at.sampled_ids),
    "negative_entropy": lambda at: negative_entropy(at.teacher_logp),
    "teacher_student_kl": lambda at: teacher_student_kl(at.teacher_logp, at.student_logp),
}


def trust(gamma: float) -> AllocationRule:
    """The paper's rule over calibrated scores (Eq. 4)."""
    check_gamma(gamma)

    def allocate(at: CandidateState, calibrated: Tensor | None) -> Tensor:
        if calibrated is None:
            raise ValueError("the trust rule needs scores, but there are none. Pass a score rule.")
        return trust_weights(calibrated, None, gamma)

    return allocate


@dataclass(frozen=True)
class Objective:
    """`scores` are raw (rho), so that they can be calibrated and studied later; None if the rule needs none."""

    token_loss: Float[Tensor, "B T"]
    weights: Float[Tensor, "K B T"]
    scores: Float[Tensor, "K B T"] | None
    target_logp: Float[Tensor, "B T C"]
    degenerate: Bool[Tensor, "B T"]


def objective(
    at: CandidateState,
    allocate: AllocationRule,
    score: ScoreRule | None = None,
    mu: Float[Tensor, " K"] | None = None,
    granularity: str = "token",
) -> Objective:
    """The token losses of one batch. Gradients reach the student only through `student_logp` (stop-gradient, line
    10)."""
    if granularity not in ("token", "response"):
        raise ValueError(f"granularity = {granularity!r} is unknown. Choose token or response.")
    scores = None if score is None else score(at).detach()
    if scores is not None:
        _check_shape("score", scores, at)
        if not bool((scores.isfinite() & (scores >= 0)).all()):
            raise ValueError(
                f"the score rule gave values from {scores.min():.3g} to {scores.max():.3g}, some negative, NaN or "
                "infinite. Scores are non-negative numbers; NaN comes from a model whose logits are not finite."
            )
    calibrated = scores if scores is None or mu is None else calibrated_scores(scores, mu)
    weights = allocate(at, calibrated).detach()
    _check_shape("allocation", weights, at)
    if not bool(((weights >= 0).all(dim=0) & ((weights.sum(dim=0) - 1).abs() < 1e-3)).all()):
        raise ValueError(
            "the allocation rule gave weights that are negative, NaN, or do not sum to one over teachers (their first "
            f"axis); the sums go from {weights.sum(dim=0).min():.3g} to {weights.sum(dim=0).max():.3g}. Normalise over "
            "dimension 0."
        )
    if granularity == "response":
        weights = response_level(weights, at.mask)
    target_logp = mixed_target(at.teacher_logp, weights).detach()
    token_loss = reverse_kl(at.student_logp, target_logp)
    valid = at.mask != 0
    degenerate = torch.zeros_like(valid) if scores is None else valid & degenerate_tokens(scores)
    return Objective(token_loss, weights, scores, target_logp, degenerate)


def _check_shape(rule: str, values: Tensor, at: CandidateState) -> None:
    if values.shape != at.teacher_logp.shape[:-1]:
        raise ValueError(
            f"the {rule} rule returned values of shape {tuple(values.shape)}, but there must be one for each teacher "
            f"at each token: {tuple(at.teacher_logp.shape[:-1])}. Return [K, B, T]."
        )
