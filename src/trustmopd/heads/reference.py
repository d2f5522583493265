"""Full logits in plain torch: the oracle for tests and benchmarks of the other implementations."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from trustmopd.heads.shared import logits_dtype, transform
from trustmopd.method.candidates import top_candidates


def full_logits(
    hidden: Float[Tensor, "N H"],
    weight: Float[Tensor, "V H"],
    bias: Float[Tensor, " V"] | None = None,
    *,
    logit_scale: float = 1.0,
    softcap: float | None = None,
) -> Float[Tensor, "N V"]:
    """The [N, V] tensor that the other implementations avoid."""
    dtype = logits_dtype(hidden, weight)
    with torch.autocast(hidden.device.type, enabled=False):
        logits = F.linear(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    return transform(logits, logit_scale, softcap)


def candidate_logits(
    hidden: Float[Tensor, "N H"],
    weight: Float[Tensor, "V H"],
    ids: Int[Tensor, "N C"],
    bias: Float[Tensor, " V"] | None = None,
    *,
    logit_scale: float = 1.0,
    softcap: float | None = None,
) -> Float[Tensor, "N C"]:
    return full_logits(hidden, weight, bias, logit_scale=logit_scale, softcap=softcap).gather(-1, ids.long())


@torch.no_grad()
def top_candidates_of(
    hidden: Float[Tensor, "N H"],
    weight: Float[Tensor, "V H"],
    num_candidates: int,
    bias: Float[Tensor, " V"] | None = None,
    *,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    vocab_size: int | None = None,
) -> tuple[Int[Tensor, "N C"], Float[Tensor, " N"]]:
    logits = full_logits(hidden, weight, bias, logit_scale=logit_scale, softcap=softcap)[:, :vocab_size]
    return top_candidates(logits, num_candidates), torch.logsumexp(logits, dim=-1)
