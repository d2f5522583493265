"""What the student minimises: reverse KL at each token, averaged within each response first, then over responses."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


def reverse_kl(student_logp: Float[Tensor, "*N C"], target_logp: Float[Tensor, "*N C"]) -> Float[Tensor, "*N"]:
    """KL(p_θ ‖ q), both normalised over the candidates. The divergence itself must be differentiated: as a detached
    advantage on the same tokens, its gradient would vanish in expectation."""
    return (student_logp.exp() * (student_logp - target_logp)).sum(dim=-1)


def response_means(token_loss: Float[Tensor, "B T"], mask: Shaped[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """L_i of Algorithm 2: mean over each response's own tokens; 0 for an empty response."""
    valid = mask != 0
    return torch.where(valid, token_loss, 0.0).sum(dim=-1) / valid.sum(dim=-1).clamp_min(1)


def mean_of_response_means(token_loss: Float[Tensor, "B T"], mask: Shaped[Tensor, "B T"]) -> Float[Tensor, ""]:
    """L: a short response counts as much as a long one. Empty responses are not counted."""
    num_responses = (mask != 0).any(dim=-1).sum()
    return response_means(token_loss, mask).sum() / num_responses.clamp_min(1)
