"""Full logits in plain torch: the oracle for tests and benchmarks of the other implementations."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from trustmopd.heads.shared import Projection, logits_dtype, transform
from trustmopd.method.candidates import top_candidates


def full_logits(hidden: Float[Tensor, "N H"], head: Projection) -> Float[Tensor, "N V"]:
    """The [N, V] tensor that the other implementations avoid."""
    dtype = logits_dtype(hidden, head.weight)
    bias = None if head.bias is None else head.bias.to(dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        logits = F.linear(hidden.to(dtype), head.weight.to(dtype), bias)
    return transform(logits, head.logit_scale, head.softcap)


def candidate_logits(hidden: Float[Tensor, "N H"], head: Projection, ids: Int[Tensor, "N C"]) -> Float[Tensor, "N C"]:
    return full_logits(hidden, head).gather(-1, ids.long())


@torch.no_grad()
def top_candidates_of(
    hidden: Float[Tensor, "N H"], head: Projection, num_candidates: int, vocab_size: int | None = None
) -> tuple[Int[Tensor, "N C"], Float[Tensor, " N"]]:
    logits = full_logits(hidden, head)[:, :vocab_size]
    return top_candidates(logits, num_candidates), torch.logsumexp(logits, dim=-1)
