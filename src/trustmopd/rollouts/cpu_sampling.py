"""What makes `generate` slow on a CPU: two operations, replaced while a model samples there, and responses that have
ended but stay in the batch until the longest ends. `benchmarks/bench_rollouts.py` measures it."""

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import DynamicCache, GenerationConfig
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

#: New tokens of a round. A batch that needs no more is sampled at once, with the random numbers of one call.
ROUND = 32


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


def generate_in_rounds(
    model: Any, input_ids: Tensor, attention_mask: Tensor, generation_config: GenerationConfig, **others: Any
) -> Tensor:
    """What `generate` returns, in rounds: responses that have ended leave the batch. A row's random numbers depend on
    when the others end."""
    config = copy.deepcopy(generation_config)
    rows = torch.arange(len(input_ids))
    ends = torch.tensor(config.eos_token_id, dtype=torch.long)
    width, limit = input_ids.shape[1], config.max_new_tokens
    cache = DynamicCache(config=model.config)
    made = torch.full((len(rows), width + limit), config.pad_token_id)
    while len(rows):
        before = input_ids.shape[1]
        config.max_new_tokens = min(ROUND, width + limit - before)
        input_ids = model.generate(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            generation_config=config,
            **others,
        )
        made[rows, : input_ids.shape[1]] = input_ids
        left = ~torch.isin(input_ids[:, before:], ends).any(dim=1)
        stopped = left.any() and input_ids.shape[1] < before + config.max_new_tokens
        if stopped or input_ids.shape[1] == width + limit:
            break
        rows, input_ids = rows[left], input_ids[left]
        new = attention_mask.new_ones(len(rows), input_ids.shape[1] - before)
        attention_mask = torch.cat([attention_mask[left], new], dim=1)
        if len(rows):
            cache.batch_select_indices(left.nonzero()[:, 0])
    return made[:, : input_ids.shape[1]]


def can_use_rounds(model: Any, rows: int, config: GenerationConfig) -> bool:
    """Whether rounds mean the same as one call, and can be faster. Processes that share a model must make the same
    calls; a cache of another kind may not let rows go, and some models take none."""
    alone = not (dist.is_initialized() and dist.get_world_size() > 1)
    if model.device.type != "cpu" or not alone or rows == 1 or config.max_new_tokens <= ROUND:
        return False
    if config.cache_implementation or config.return_dict_in_generate:
        return False
    if "past_key_values" not in inspect.signature(plain(model).forward).parameters:
        return False
    try:
        cache = DynamicCache(config=model.config)
    except (AttributeError, KeyError):  # a configuration that transformers' own cache does not know
        return False
    return all(type(layer) is DynamicLayer for layer in cache.layers)


def plain(model: Any) -> Any:
    """Without PEFT around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
