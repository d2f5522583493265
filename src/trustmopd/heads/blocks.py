"""Work in pieces of bounded size: slices of tokens, and products into a buffer of higher precision."""

import torch
from torch import Tensor

MIB = 2**20
# Half-precision weights are converted to float32 in tiles of this size: a full copy would cost the memory that chunks
# save.
TILE_BYTES = 16 * MIB


def blocks(count: int, bytes_each: int, budget: int, *, multiple: int = 1) -> list[slice]:
    """Slices that cover `count` items. Each has at most `budget` bytes but at least one item, and a multiple of
    `multiple` items if that fits."""
    size = max(1, min(count, budget // max(1, bytes_each)))
    size = size - size % multiple or size
    return [slice(first, first + size) for first in range(0, count, size)]


def addmm(total: Tensor, left: Tensor, right: Tensor, *, beta: int) -> None:
    """total ← beta · total + left @ right, in the precision of `total`, with `right` rounded to that of `left`.
    Autocast does not apply to products with a given `out`."""
    if left.dtype == right.dtype == total.dtype:
        torch.addmm(total, left, right, beta=beta, out=total)
    elif left.is_cuda and left.dtype == right.dtype and total.dtype == torch.float32:
        torch.addmm(total, left, right, beta=beta, out_dtype=total.dtype, out=total)
    else:
        raised = left.to(total.dtype)
        for tile in blocks(right.shape[1], right.shape[0] * total.element_size(), TILE_BYTES):
            columns = right[:, tile].to(left.dtype).to(total.dtype)
            torch.addmm(total[:, tile], raised, columns, beta=beta, out=total[:, tile])
