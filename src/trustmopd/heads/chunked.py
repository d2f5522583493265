"""Candidate logits in bounded memory, in plain torch, on any device.

Tokens are taken in chunks. Scoring candidates reads C rows of the weight per token; only the search for the student's
top-C projects onto the whole vocabulary, a block of tokens at a time. Backward reads the same rows again.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from trustmopd.heads.shared import MIB, Products, Projection, addmm, blocks, check_ids, logits_dtype, transform

# Logits of one block of tokens over the whole vocabulary.
BLOCK_BYTES = 64 * MIB
# Gathered rows [n, C, H] of one chunk: on a CPU they should fit into the cache; a GPU needs enough work per launch.
ROWS_BYTES = {"cpu": 8 * MIB, "cuda": 128 * MIB}
# Each block of the dense weight gradient reads and writes all of [V, H], so blocks are larger there.
GRADIENT_BLOCK_BYTES = 256 * MIB


def _row_products(
    hidden: Float[Tensor, "N H"], weight: Float[Tensor, "V H"], ids: Int[Tensor, "N C"]
) -> Float[Tensor, "N C"]:
    dtype = logits_dtype(hidden, weight)
    if ids.numel() and _reads_rows_in_place(weight, dtype):
        check_ids(ids, weight.shape[0])
        # These products are the gradient of Σ_c s_c · weight[ids_c] in s, where the gradient of the sum is `hidden`.
        starts = torch.arange(0, ids.numel(), ids.shape[1], dtype=ids.dtype)
        token = torch.arange(ids.shape[0], dtype=ids.dtype).repeat_interleave(ids.shape[1])
        products = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            hidden.to(dtype), weight, ids.reshape(-1), starts, token, mode=0
        )
        return products.view(ids.shape)
    result = torch.empty(ids.shape, dtype=dtype, device=hidden.device)
    for chunk in _row_chunks(weight, ids, dtype):
        rows = F.embedding(ids[chunk], weight).transpose(1, 2)
        result[chunk] = _bmm(hidden[chunk].unsqueeze(1), rows, dtype).squeeze(1)
    return result


def _hidden_gradient(
    grad: Float[Tensor, "N C"], weight: Float[Tensor, "V H"], ids: Int[Tensor, "N C"], dtype: torch.dtype
) -> Float[Tensor, "N H"]:
    if ids.numel() and _reads_rows_in_place(weight, grad.dtype):
        return F.embedding_bag(ids, weight, per_sample_weights=grad, mode="sum").to(dtype)
    result = torch.empty((ids.shape[0], weight.shape[1]), dtype=grad.dtype, device=grad.device)
    for chunk in _row_chunks(weight, ids, grad.dtype):
        result[chunk] = _bmm(grad[chunk].unsqueeze(1), F.embedding(ids[chunk], weight), grad.dtype).squeeze(1)
    return result.to(dtype)


def _weight_gradient(
    grad: Float[Tensor, "N C"], hidden: Float[Tensor, "N H"], ids: Int[Tensor, "N C"], weight: Float[Tensor, "V H"]
) -> Float[Tensor, "V H"]:
    """On a GPU with tensor cores the dense product is faster, though most of it is zeros. On a CPU it is faster to add
    only the chosen rows."""
    by = _weight_gradient_by_blocks if grad.is_cuda else _weight_gradient_by_rows
    return by(grad, hidden, ids, weight.shape[0]).to(weight.dtype)


def _weight_gradient_by_rows(
    grad: Float[Tensor, "N C"], hidden: Float[Tensor, "N H"], ids: Int[Tensor, "N C"], vocab_size: int
) -> Float[Tensor, "V H"]:
    """Each row's gradient is a weighted sum of the hidden states that chose it. With the choices sorted by row this is
    an embedding bag, which writes each row once; `index_add_` of outer products would write it once per choice."""
    if ids.numel() == 0:
        return grad.new_zeros((vocab_size, hidden.shape[1]))
    row, choice = ids.reshape(-1).sort(stable=True)
    start = torch.searchsorted(row, torch.arange(vocab_size, dtype=row.dtype, device=row.device))
    share = grad.reshape(-1)[choice]
    return F.embedding_bag(choice // ids.shape[1], hidden.to(grad.dtype), start, per_sample_weights=share, mode="sum")


def _weight_gradient_by_blocks(
    grad: Float[Tensor, "N C"], hidden: Float[Tensor, "N H"], ids: Int[Tensor, "N C"], vocab_size: int
) -> Float[Tensor, "V H"]:
    """Scatters the gradients of a block of tokens into a zero matrix over the vocabulary, and multiplies."""
    result = grad.new_zeros((vocab_size, hidden.shape[1]))
    for chunk in blocks(ids.shape[0], vocab_size * hidden.element_size(), GRADIENT_BLOCK_BYTES):
        block = hidden.new_zeros((ids[chunk].shape[0], vocab_size))
        block.scatter_add_(1, ids[chunk].long(), grad[chunk].to(hidden.dtype))
        addmm(result, block.T, hidden[chunk], beta=1)
    return result


candidate_logits = Products(_row_products, _hidden_gradient, _weight_gradient).candidate_logits


@torch.no_grad()
def top_candidates_of(
    hidden: Float[Tensor, "N H"], head: Projection, num_candidates: int, vocab_size: int | None = None
) -> tuple[Int[Tensor, "N C"], Float[Tensor, " N"]]:
    """The C likeliest tokens and the log-partition over the whole vocabulary. Multiplies in the precision of the hidden
    states, as the model's own head does under autocast; the weight is rounded to it."""
    num_tokens, device, dtype = hidden.shape[0], hidden.device, logits_dtype(hidden, head.weight)
    weight = head.weight[:vocab_size]
    if hidden.is_cuda:
        weight = weight.to(hidden.dtype)
    ids = torch.empty((num_tokens, num_candidates), dtype=torch.long, device=device)
    logsumexp = torch.empty(num_tokens, dtype=dtype, device=device)
    chunks = blocks(num_tokens, weight.shape[0] * dtype.itemsize, BLOCK_BYTES)
    # One buffer for all chunks: on a CPU, new memory for each would cost more than the top-C itself.
    buffer = torch.empty((chunks[0].stop if chunks else 0, weight.shape[0]), dtype=dtype, device=device)
    for chunk in chunks:
        logits = buffer[: hidden[chunk].shape[0]]
        addmm(logits, hidden[chunk], weight.T, beta=0)
        if head.bias is not None:
            logits += head.bias[:vocab_size]
        transform(logits, head.logit_scale, head.softcap, out=logits)
        largest, ids[chunk] = logits.topk(num_candidates, dim=-1)
        # Clamped, so that a row of −inf gives −inf rather than NaN.
        peak = largest[:, :1].clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
        logsumexp[chunk] = logits.sub_(peak).exp_().sum(dim=-1).log_().add_(peak.squeeze(1))
    return ids, logsumexp


def _bmm(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """left @ right, with exact products summed and returned in `dtype`, regardless of autocast."""
    with torch.autocast(left.device.type, enabled=False):
        if left.is_cuda and left.dtype == right.dtype != dtype:
            return torch.bmm(left, right, out_dtype=dtype)
        return torch.bmm(left.to(dtype), right.to(dtype))


def _reads_rows_in_place(weight: Float[Tensor, "V H"], dtype: torch.dtype) -> bool:
    """Whether PyTorch's weighted embedding bags can be used. They gather nothing and need no chunks: they are twice as
    fast on a CPU, and much faster on busy cores, where threads would wait after every chunk. They do not support mixed
    precision."""
    return weight.device.type == "cpu" and weight.dtype == dtype


def _row_chunks(weight: Float[Tensor, "V H"], ids: Int[Tensor, "N C"], dtype: torch.dtype) -> list[slice]:
    budget = ROWS_BYTES.get(weight.device.type, ROWS_BYTES["cuda"])
    return blocks(ids.shape[0], ids.shape[1] * weight.shape[1] * dtype.itemsize, budget)
