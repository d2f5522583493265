"""The mixed target: one distribution that combines all teachers at a position."""

import torch
from jaxtyping import Float
from torch import Tensor


def mixed_target(teacher_logp: Float[Tensor, "K *N C"], weights: Float[Tensor, " K *N"]) -> Float[Tensor, "*N C"]:
    """log of the weighted geometric mean of the teachers, normalised over the candidates (Eq. 28). Reverse KL to this
    target has the same gradient as the weighted sum of the K reverse KLs: the two differ only by −log Z (Eq. 29)."""
    share = weights.unsqueeze(-1)
    # A teacher with weight 0 must have no effect, even where it gives a candidate probability 0: 0 · −inf would be NaN.
    log_mean = torch.where(share != 0, share * teacher_logp, 0.0).sum(dim=0)
    return torch.log_softmax(log_mean, dim=-1)
