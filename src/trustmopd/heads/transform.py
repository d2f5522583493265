"""What happens to logits after the output projection, and in which precision: shared by all implementations."""

import torch
from jaxtyping import Float
from torch import Tensor


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
