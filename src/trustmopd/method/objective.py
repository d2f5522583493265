"""The paper's Algorithm 2 at the positions of one batch: scores → calibrated scores → weights → mixed target → loss.

Read this file first. Rollouts and model forwards come before it (`training/`), and averaging over responses comes after
it (`loss.py`). The objective has four parts, each a function: score, allocation, target and emphasis.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trustmopd.method.allocation import among_speakers, check_gamma, degenerate_tokens, response_level, trust_weights
from trustmopd.method.axes import CandidateState
from trustmopd.method.calibration import calibrated_scores
from trustmopd.method.loss import reverse_kl
from trustmopd.method.scores import displacement, negative_entropy, teacher_likelihood, teacher_student_kl
from trustmopd.method.target import mixed_target

ScoreRule = Callable[[CandidateState], Tensor]
AllocationRule = Callable[[CandidateState, Tensor | None], Tensor]
#: Of a target and an emphasis, the second argument is the weights ``[K, B, T]``.
TargetRule = Callable[[CandidateState, Tensor], Tensor]
EmphasisRule = Callable[[CandidateState, Tensor], Tensor]


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
        return trust_weights(calibrated, None, gamma, at.speaks)

    return allocate


def geometric_mean(at: CandidateState, weights: Tensor) -> Tensor:
    """The paper's target (Eq. 28)."""
    return mixed_target(at.teacher_logp, weights)


def even(at: CandidateState, weights: Tensor) -> Tensor:
    """The paper's emphasis: every token of a response counts alike."""
    return torch.ones_like(weights[0])


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
    *,
    target: TargetRule = geometric_mean,
    emphasis: EmphasisRule = even,
) -> Objective:
    """The token losses of one batch. Gradients reach the student only through `student_logp` (stop-gradient, line 10).
    A token without weights has loss 0, and stays in its response's count: no denominator depends on a rule."""
    if granularity not in ("token", "response"):
        raise ValueError(f"granularity = {granularity!r} is unknown. Choose token or response.")
    scores = None if score is None else _scores(at, score)
    weights = allocate(at, scores if scores is None or mu is None else calibrated_scores(scores, mu)).detach()
    _check_shape("allocation", weights, at)
    total = weights.sum(dim=0)
    if not bool(((weights >= 0).all(dim=0) & (((total - 1).abs() < 1e-3) | (total == 0))).all()):
        raise ValueError(
            "the allocation rule gave weights that are negative, NaN, or do not sum to one over teachers (their first "
            f"axis); the sums go from {total.min():.3g} to {total.max():.3g}. Normalise over dimension 0; a token that "
            "nobody teaches has weights 0."
        )
    weights = among_speakers(weights, at.speaks)
    if granularity == "response":
        weights = among_speakers(response_level(weights, at.mask), at.speaks)
    target_logp = target(at, weights).detach()
    token_loss = emphasis(at, weights).detach() * reverse_kl(at.student_logp, target_logp)
    token_loss = torch.where((weights != 0).any(dim=0), token_loss, 0.0)
    return Objective(token_loss, weights, scores, target_logp, _degenerate(at, scores))


def _scores(at: CandidateState, score: ScoreRule) -> Tensor:
    """A teacher that does not speak has score 0."""
    scores = score(at).detach()
    _check_shape("score", scores, at)
    scores = scores if at.speaks is None else torch.where(at.speaks != 0, scores, 0.0)
    if not bool((scores.isfinite() & (scores >= 0)).all()):
        raise ValueError(
            f"the score rule gave values from {scores.min():.3g} to {scores.max():.3g}, some negative, NaN or "
            "infinite. Scores are non-negative numbers; NaN comes from a model whose logits are not finite."
        )
    return scores


def _degenerate(at: CandidateState, scores: Tensor | None) -> Tensor:
    """The response tokens at which all who speak score 0."""
    valid = at.mask != 0
    if scores is None:
        return torch.zeros_like(valid)
    heard = valid if at.speaks is None else valid & (at.speaks != 0).any(dim=0)
    return heard & degenerate_tokens(scores)


def _check_shape(rule: str, values: Tensor, at: CandidateState) -> None:
    if values.shape != at.teacher_logp.shape[:-1]:
        raise ValueError(
            f"the {rule} rule returned values of shape {tuple(values.shape)}, but there must be one for each teacher "
            f"at each token: {tuple(at.teacher_logp.shape[:-1])}. Return [K, B, T]."
        )
