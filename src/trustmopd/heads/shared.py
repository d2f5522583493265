"""What all implementations share: work in pieces of bounded size, the logits' precision, what happens to them after the
projection, and candidate logits as one differentiable operation. `chunked.py` and `fused.py` provide its products."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

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


def logits_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """float32, whatever the model's precision; float64 if either operand is."""
    return torch.float64 if torch.float64 in (hidden.dtype, weight.dtype) else torch.float32


def transform(
    logits: Float[Tensor, "*N C"], logit_scale: float, softcap: float | None, *, out: Tensor | None = None
) -> Float[Tensor, "*N C"]:
    """softcap · tanh(logit_scale · logits / softcap): the scale comes first. `out=logits` works in place."""
    if logit_scale != 1.0:
        logits = torch.mul(logits, logit_scale, out=out)
    if softcap is not None:
        logits = torch.mul(torch.tanh(torch.div(logits, softcap, out=out), out=out), softcap, out=out)
    return logits


def transform_gradient(
    grad: Float[Tensor, "*N C"], transformed: Float[Tensor, "*N C"] | None, logit_scale: float, softcap: float | None
) -> Float[Tensor, "*N C"]:
    """The gradient before the transformation, from the gradient after it. Only a soft cap needs the result of
    `transform`."""
    if softcap is not None and transformed is not None:
        grad = grad * (1.0 - (transformed / softcap).square())
    return grad if logit_scale == 1.0 else grad * logit_scale


@dataclass(frozen=True, eq=False)
class Projection:
    """From hidden states to logits: softcap · tanh(logit_scale · (weight · hidden + bias) / softcap)."""

    weight: Float[Tensor, "V H"]
    bias: Float[Tensor, " V"] | None = None
    logit_scale: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True)
class Products:
    """What differs between implementations. Sums have the logits' precision, also under autocast."""

    #: (hidden[N,H], weight[V,H], ids[N,C]) → [N,C]: hidden · weight[id], one product per candidate
    rows: Callable[[Tensor, Tensor, Tensor], Tensor]
    #: (grad[N,C], weight[V,H], ids[N,C], dtype) → [N,H]: Σ_c grad_c · weight[id_c]
    hidden_gradient: Callable[[Tensor, Tensor, Tensor, torch.dtype], Tensor]
    #: (grad[N,C], hidden[N,H], ids[N,C], weight) → like weight: row v sums grad · hidden where v is a candidate
    weight_gradient: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    def candidate_logits(
        self, hidden: Float[Tensor, "N H"], head: Projection, ids: Int[Tensor, "N C"]
    ) -> Float[Tensor, "N C"]:
        """Logits of the candidates only. If the head is frozen, its gradient is not computed."""
        return CandidateLogits.apply(self, hidden, head.weight, ids, head.bias, head.logit_scale, head.softcap)


class CandidateLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        products: Products,
        hidden: Tensor,
        weight: Tensor,
        ids: Tensor,
        bias: Tensor | None,
        logit_scale: float,
        softcap: float | None,
    ) -> Tensor:
        ids = ids.contiguous()
        logits = products.rows(hidden, weight, ids)
        if bias is not None:
            logits += bias[ids]
        logits = transform(logits, logit_scale, softcap, out=logits)
        ctx.save_for_backward(hidden, weight, ids, bias, logits if softcap is not None else None)
        ctx.products, ctx.logit_scale, ctx.softcap = products, logit_scale, softcap
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, ids, bias, logits = ctx.saved_tensors
        _, for_hidden, for_weight, _, for_bias, *_ = ctx.needs_input_grad
        grad = transform_gradient(grad, logits, ctx.logit_scale, ctx.softcap).contiguous()
        return (
            None,
            ctx.products.hidden_gradient(grad, weight, ids, hidden.dtype) if for_hidden else None,
            ctx.products.weight_gradient(grad, hidden, ids, weight) if for_weight else None,
            None,
            _bias_gradient(grad, ids, bias) if for_bias else None,
            None,
            None,
        )


def check_ids(ids: Int[Tensor, "N C"], num_rows: int) -> None:
    """Kernels do not check ids, and would read past the end of the weight."""
    if not ids.numel():
        return
    lowest, highest = (int(bound) for bound in torch.stack(ids.aminmax()).tolist())
    if not 0 <= lowest <= highest < num_rows:
        raise IndexError(
            f"candidate ids run from {lowest} to {highest}, but the output head has {num_rows} rows: they come from a "
            "model with a larger vocabulary. Compare the two vocabularies, or pass vocab_size to the search for "
            "candidates."
        )


def _bias_gradient(grad: Float[Tensor, "N C"], ids: Int[Tensor, "N C"], bias: Float[Tensor, " V"]) -> Tensor:
    total, ids, grad = grad.new_zeros(bias.shape[0]), ids.reshape(-1), grad.reshape(-1)
    # index_put_ adds in a fixed order on a GPU only, index_add_ on a CPU only.
    if grad.is_cuda:
        return total.index_put_((ids,), grad, accumulate=True).to(bias.dtype)
    return total.index_add_(0, ids, grad).to(bias.dtype)
