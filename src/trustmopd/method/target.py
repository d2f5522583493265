"""The target: one distribution that combines all teachers at a position. The paper's is the weighted geometric mean."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


def mixed_target(teacher_logp: Float[Tensor, "K *N C"], weights: Float[Tensor, " K *N"]) -> Float[Tensor, "*N C"]:
    """log of the weighted geometric mean of the teachers, normalised over the candidates (Eq. 28). Reverse KL to this
    target has the same gradient as the weighted sum of the K reverse KLs: the two differ only by −log Z (Eq. 29)."""
    share = weights.unsqueeze(-1)
    # A teacher with weight 0 must have no effect, even where it gives a candidate probability 0: 0 · −inf would be NaN.
    log_mean = torch.where(share != 0, share * teacher_logp, 0.0).sum(dim=0)
    return torch.log_softmax(log_mean, dim=-1)


def extrapolated_target(
    teacher_logp: Float[Tensor, "K *N C"],
    reference_logp: Float[Tensor, "*N C"] | Float[Tensor, "K *N C"],
    weights: Float[Tensor, " K *N"],
    factor: float,
) -> Float[Tensor, "*N C"]:
    """Σ_k w_k (r_k + λ (t_k − r_k)), normalised: every teacher's change, λ times as far (ExOPD, arXiv 2602.12125, for
    any weights). λ = 1 is the mixed target."""
    return mixed_target(reference_logp + factor * (teacher_logp - reference_logp), weights)


def shift_target(
    teacher_logp: Float[Tensor, "K *N C"],
    reference_logp: Float[Tensor, "*N C"] | Float[Tensor, "K *N C"],
    initial_logp: Float[Tensor, "*N C"],
    shares: Shaped[Tensor, " K *N"] | None = None,
) -> Float[Tensor, "*N C"]:
    """A + Σ_k (t_k − r_k), normalised: the initial student A with all that its teachers have learnt (ShiftMOPD, arXiv
    2610.10460). `shares` of each shift that are added; None: all of it."""
    shifts = teacher_logp - reference_logp
    if shares is not None:
        shifts = torch.where(shares.unsqueeze(-1) != 0, shares.unsqueeze(-1) * shifts, 0.0)
    return torch.log_softmax(initial_logp + shifts.sum(dim=0), dim=-1)
