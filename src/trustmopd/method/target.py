"""The one distribution that stands for all teachers at a position."""

import torch
from jaxtyping import Float
from torch import Tensor


def mixed_target(teacher_logp: Float[Tensor, "K *N C"], weights: Float[Tensor, "K *N"]) -> Float[Tensor, "*N C"]:
    """log of the weighted geometric mean of the teachers, normalised over the candidates (Eq. 28). Pulling the
    student to it by reverse KL has the gradient of the weighted sum of the K reverse KLs, which differs by −log Z
    alone (Eq. 29)."""
    share = weights.unsqueeze(-1)
    # A teacher of weight 0 has no say, even where it rules a candidate out: 0 · −inf would be NaN.
    log_mean = torch.where(share != 0, share * teacher_logp, 0.0).sum(dim=0)
    return torch.log_softmax(log_mean, dim=-1)
