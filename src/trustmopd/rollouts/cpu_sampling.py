"""What makes `generate` slow on a CPU, replaced while a model samples there. `benchmarks/bench_rollouts.py` measures
it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


@contextmanager
def faster_on_cpu(model: Any) -> Iterator[None]:
    """On a CPU, `model` samples faster inside; on another device nothing changes."""
    if model.device.type != "cpu":
        yield
        return
    head = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(_contiguous) if head is not None else None
    # The function and not the model's setting: some models compare the setting's name, and then build another mask.
    # Only the caller that replaced it restores it; a user's own attention function is left alone.
    mine = ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    if mine:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = grouped_attention
    try:
        yield
    finally:
        if mine:
            ALL_ATTENTION_FUNCTIONS["sdpa"] = sdpa_attention_forward
        if hook is not None:
            hook.remove()


def _contiguous(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """After a prompt, transformers gives the output head a slice of the hidden states. torch multiplies a slice row by
    row if the weight is frozen, in bfloat16 by a copy of the weight each. A contiguous tensor is multiplied at once."""
    return tuple(each.contiguous() if isinstance(each, Tensor) else each for each in given)


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,  # [B, heads, tokens, width]
    key: Tensor,  # [B, groups, positions, width]
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """For a single token in 16 bits, the products of each group of heads with its keys. torch's fused kernel takes many
    times as long. For anything else, that kernel."""
    batch, heads, tokens, width = query.shape
    if tokens > 1 or dropout or not _fits(query, attention_mask, others):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **others)
    # float32: scores of 100 and more are half a unit apart in bfloat16
    scores = query.view(batch, key.shape[1], -1, width).float() @ key.transpose(2, 3).float()
    scores *= width**-0.5 if scaling is None else scaling
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)  # finite, where all is masked
    mixed = scores.softmax(dim=-1).to(value.dtype) @ value
    return mixed.view(batch, heads, 1, -1).transpose(1, 2).contiguous(), None


def _fits(query: Tensor, mask: Tensor | None, others: Mapping[str, Any]) -> bool:
    """On a CPU in 16 bits, with no mask or one for all heads that says yes or no, and nothing that changes scores."""
    halves = query.dtype.itemsize == 2 or torch.is_autocast_enabled("cpu")
    shared = mask is None or (mask.dtype == torch.bool and mask.shape[1] == 1)
    plain = all(others.get(name) is None for name in ("position_bias", "softcap", "cache"))
    return query.device.type == "cpu" and halves and shared and plain
