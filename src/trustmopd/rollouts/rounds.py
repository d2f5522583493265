"""On a CPU, `generate` in rounds: responses that have ended leave the batch. `generate` alone works on every row until
the longest response ends."""

import copy
import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import DynamicCache, GenerationConfig
from transformers.cache_utils import DynamicLayer

#: New tokens of a round. A batch that needs no more is sampled at once, with the random numbers of one call.
ROUND = 32


def generate_in_rounds(
    model: Any, input_ids: Tensor, attention_mask: Tensor, generation_config: GenerationConfig, **others: Any
) -> Tensor:
    """Prompts and responses, padded on the right: what `generate` returns. A row's random numbers depend on when the
    others end."""
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
