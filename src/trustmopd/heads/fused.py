"""Candidate logits with Triton kernels: rows of the weight are read in place, without gathering them.

The student's top-C: a block of logits by the vendor's matrix product, one pass over it for the maxima of small groups
of columns and the log-partition, then an exact selection inside C groups per token. `torch.topk` over the vocabulary
costs more than the product it follows; this costs a fraction of it. Gradients are summed in a fixed order, without
atomics, so two runs agree bit for bit.
"""

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from trustmopd.heads import kernels
from trustmopd.heads.shared import MIB, Products, Projection, addmm, blocks

#: Logits of one block of tokens over the whole vocabulary: enough tokens for an efficient product, and no more.
BLOCK_BYTES = 384 * MIB
#: What one program holds in registers: columns of the chosen groups, and maxima of all groups.
COLUMNS = 4096
MAX_GROUPS = 32768
MAX_CANDIDATES = 1024
MAX_VOCABULARY = MAX_GROUPS * 32
#: Rows chosen more often than this are popular. Below, tiles of the weighted sums: choices, columns, warps.
MANY = 256
SHORT_TILE = (2, 512, 1)
LONG_TILE = (32, 128, 4)
#: Rows in a tile of the matrix product: a tile that is partly filled costs as much as a full one.
ROW_MULTIPLE = 128
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def unsupported(hidden: Tensor, weight: Tensor, num_candidates: int) -> str | None:
    """Why these kernels do not support this problem; None if they do."""
    if not hidden.is_cuda and not isinstance(kernels.row_products, InterpretedFunction):
        return f"they need a GPU, and the hidden states are on {hidden.device}"
    if num_candidates > MAX_CANDIDATES:
        return f"C = {num_candidates} is over their limit of {MAX_CANDIDATES}"
    if weight.shape[0] > MAX_VOCABULARY:
        return f"a vocabulary of {weight.shape[0]} is over their limit of {MAX_VOCABULARY}"
    if bad := [str(tensor.dtype) for tensor in (hidden, weight) if tensor.dtype not in DTYPES]:
        return f"they do not multiply {bad[0]}"
    if not weight.is_contiguous():
        return "the weight is not contiguous, and a copy would cost what they save"
    return None


def _row_products(
    hidden: Float[Tensor, "N H"], weight: Float[Tensor, "V H"], ids: Int[Tensor, "N C"]
) -> Float[Tensor, "N C"]:
    hidden, out = hidden.contiguous(), torch.empty(ids.shape, dtype=torch.float32, device=hidden.device)
    block_c, block_h = min(16, _power(ids.shape[1])), min(64, _power(hidden.shape[1]))
    if out.numel():
        grid = (ids.shape[0], triton.cdiv(ids.shape[1], block_c))
        with torch.cuda.device_of(hidden):
            kernels.row_products[grid](
                hidden, weight, ids, out, hidden.shape[1], ids.shape[1], block_c, block_h, num_warps=4
            )
    return out


def _hidden_gradient(
    grad: Float[Tensor, "N C"], weight: Float[Tensor, "V H"], ids: Int[Tensor, "N C"], dtype: torch.dtype
) -> Float[Tensor, "N H"]:
    out = torch.empty((ids.shape[0], weight.shape[1]), dtype=dtype, device=grad.device)
    _weighted_rows(out, weight, grad, ids, tile=SHORT_TILE)
    return out


def _weight_gradient(
    grad: Float[Tensor, "N C"], hidden: Float[Tensor, "N H"], ids: Int[Tensor, "N C"], weight: Float[Tensor, "V H"]
) -> Float[Tensor, "V H"]:
    """Each row's gradient is a weighted sum of the hidden states that chose it. With the choices sorted by row, each
    row is written once, and the hidden states are read from the cache. In text, nearly every token chooses the same few
    rows: they get a launch of their own, with larger tiles, so the other rows do not wait for them."""
    hidden, out = hidden.contiguous(), torch.empty_like(weight)
    row, order = ids.reshape(-1).to(torch.int32).sort(stable=True)  # takes half as many passes as int64
    starts = torch.searchsorted(row, torch.arange(weight.shape[0] + 1, dtype=row.dtype, device=row.device))
    _weighted_rows(out, hidden, grad, ids, order, starts, row, shortest=MANY + 1, tile=LONG_TILE)
    _weighted_rows(out, hidden, grad, ids, order, starts, longest=MANY, tile=SHORT_TILE)
    return out


def _weighted_rows(
    out: Tensor,
    table: Tensor,
    shares: Tensor,
    ids: Tensor,
    order: Tensor | None = None,
    starts: Tensor | None = None,
    sorted_rows: Tensor | None = None,
    *,
    shortest: int = 0,
    longest: int = 2**31 - 1,
    tile: tuple[int, int, int],
) -> None:
    block_n, block_h, num_warps = tile
    block_h = min(block_h, _power(table.shape[1]))
    count = len(out) if sorted_rows is None else len(sorted_rows) // shortest
    grid = (count, triton.cdiv(table.shape[1], block_h))
    if count:
        with torch.cuda.device_of(table):
            kernels.weighted_rows[grid](
                table,
                shares,
                ids,
                order,
                starts,
                sorted_rows,
                out,
                table.shape[1],
                ids.shape[1],
                shortest,
                longest,
                SORTED=order is not None,
                POPULAR=sorted_rows is not None,
                BLOCK_N=block_n,
                BLOCK_H=block_h,
                num_warps=num_warps,
            )


# Ids are not checked here: with a wrong one, the kernels would read past the end of the weight.
candidate_logits = Products(_row_products, _hidden_gradient, _weight_gradient).candidate_logits


@torch.no_grad()
def top_candidates_of(
    hidden: Float[Tensor, "N H"], head: Projection, num_candidates: int, vocab_size: int | None = None
) -> tuple[Int[Tensor, "N C"], Float[Tensor, " N"]]:
    """The C likeliest tokens, in no particular order, and the log-partition over the whole vocabulary. Multiplies in
    the precision of the hidden states, as the model's own head does under autocast; the weight is rounded to it."""
    num_tokens, device = hidden.shape[0], hidden.device
    vocab_size = head.weight.shape[0] if vocab_size is None else vocab_size
    weight = head.weight[:vocab_size].to(hidden.dtype) if hidden.is_cuda else head.weight[:vocab_size]
    bias = None if head.bias is None else head.bias.contiguous()
    group = _group_size(vocab_size, num_candidates)
    num_groups = triton.cdiv(vocab_size, group)
    groups_in_part = COLUMNS // group
    num_parts = triton.cdiv(num_groups, groups_in_part)
    chunks = blocks(num_tokens, vocab_size * 4, BLOCK_BYTES, multiple=ROW_MULTIPLE)
    rows = chunks[0].stop if chunks else 0

    def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    logits, maxima = buffer(rows, vocab_size), buffer(rows, num_groups)
    peaks, sums = buffer(rows, num_parts), buffer(rows, num_parts)
    groups = buffer(rows, num_candidates, dtype=torch.int32)
    ids, logsumexp = buffer(num_tokens, num_candidates, dtype=torch.long), buffer(num_tokens)
    with torch.cuda.device_of(hidden):
        for chunk in chunks:
            count = hidden[chunk].shape[0]
            addmm(logits[:count], hidden[chunk], weight.T, beta=0)
            kernels.group_maxima[count, num_parts](
                logits,
                bias,
                maxima,
                peaks,
                sums,
                vocab_size,
                num_groups,
                head.logit_scale,
                head.softcap,
                HAS_BIAS=bias is not None,
                HAS_SCALE=head.logit_scale != 1.0,
                HAS_CAP=head.softcap is not None,
                GROUP=group,
                GROUPS=groups_in_part,
                num_warps=4,
            )
            kernels.choose_candidates[count,](
                logits,
                maxima,
                peaks,
                sums,
                groups,
                ids[chunk],
                logsumexp[chunk],
                vocab_size,
                num_groups,
                num_parts,
                num_candidates,
                GROUP=group,
                GROUPS=_power(max(num_groups, num_candidates)),
                PARTS=_power(num_parts),
                COLUMNS=_power(num_candidates) * group,
                num_warps=4,
            )
    return ids, logsumexp


def _group_size(vocab_size: int, num_candidates: int) -> int:
    """Large groups mean fewer maxima to compare, small groups fewer columns to read again. The columns of C groups fill
    the registers of one program, unless there would be too many groups."""
    group = min(128, max(8, COLUMNS // _power(num_candidates)))
    while triton.cdiv(vocab_size, group) > MAX_GROUPS:
        group *= 2
    return group


def _power(number: int) -> int:
    return triton.next_power_of_2(max(1, number))
