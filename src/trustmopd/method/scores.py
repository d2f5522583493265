"""rho: how much each teacher has to say at a position. Four rules; displacement is the paper's.

Scores are non-negative and carry no gradient: they only decide how supervision is shared.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


@torch.no_grad()
def displacement(
    teacher_logp: Float[Tensor, "K *N C"], reference_logp: Float[Tensor, "*N C"] | Float[Tensor, "K *N C"]
) -> Float[Tensor, " K *N"]:
    """rho_k: length of the centred teacher–reference log-ratio (Eq. 2). Adding a constant to either model's logits
    changes nothing. There is one reference for all teachers, or one for each."""
    log_ratio = teacher_logp - reference_logp
    return torch.linalg.vector_norm(log_ratio - log_ratio.mean(dim=-1, keepdim=True), dim=-1)


@torch.no_grad()
def teacher_likelihood(
    teacher_logp: Float[Tensor, "K *N C"], candidate_ids: Int[Tensor, "*N C"], sampled_ids: Int[Tensor, "*N"]
) -> Float[Tensor, " K *N"]:
    """q_k(y_t), the teacher's probability of the token the student sampled (Eq. 31). A sampled token outside the
    candidates scores 0 for every teacher, so its weights fall back to uniform."""
    is_sampled = candidate_ids == sampled_ids.unsqueeze(-1)
    return torch.where(is_sampled, teacher_logp.exp(), 0.0).sum(dim=-1)


@torch.no_grad()
def negative_entropy(teacher_logp: Float[Tensor, "K *N C"]) -> Float[Tensor, " K *N"]:
    """log C − H(q_k): how certain the teacher is, shifted to be non-negative (Eq. 32)."""
    entropy = torch.special.entr(teacher_logp.exp()).sum(dim=-1)
    # A uniform teacher scores 0 up to rounding; below 0 its log, and so its weight, would be NaN.
    return (math.log(teacher_logp.shape[-1]) - entropy).clamp_min(0.0)


@torch.no_grad()
def teacher_student_kl(
    teacher_logp: Float[Tensor, "K *N C"], student_logp: Float[Tensor, "*N C"]
) -> Float[Tensor, " K *N"]:
    """KL(q_k ‖ p_θ), the direction opposite to the loss (Eq. 33). Both sides are normalised, so it is non-negative
    up to rounding."""
    teacher_p = teacher_logp.exp()
    terms = torch.where(teacher_p != 0, teacher_p * (teacher_logp - student_logp), 0.0)
    return terms.sum(dim=-1).clamp_min(0.0)
