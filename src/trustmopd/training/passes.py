"""A step in several passes: rows of like length together, under a budget of tokens, so that no time goes into padding.

The loss is a sum over responses, so the gradient is the same however they are grouped.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from torch import Tensor, nn

from trustmopd.teachers.reading import rows_under
from trustmopd.training.batch import sequences


def micro_batches(batch: dict[str, Any], max_tokens: int, accelerator: Accelerator) -> list[dict[str, Any]]:
    """The batch in parts of at most `max_tokens` tokens, as many in every process: each part is a pass through the
    student, in which sharded or synchronised processes take part together."""
    _, attention_mask = sequences(batch)
    lengths = (attention_mask != 0).sum(dim=1).tolist()
    mine = torch.tensor(len(rows_under(max_tokens, lengths)), device=accelerator.device)
    most = int(accelerator.gather(mine).max())
    return [part_of(batch, rows) for rows in rows_under(max_tokens, lengths, most)]


def part_of(batch: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """These rows of a batch, without the columns that are padding in all of them."""

    def taken(values: Any) -> Any:
        if isinstance(values, Tensor):
            return values[rows] if values.ndim else values
        return values if values is None else [values[row] for row in rows]

    part = {name: taken(values) for name, values in batch.items()}
    prompt, response = (max(1, int((part[f"{side}_mask"] != 0).sum(dim=1).max())) for side in ("prompt", "completion"))
    for name in ("prompt_ids", "prompt_mask"):
        part[name] = part[name][:, -prompt:]
    for name in {"completion_ids", "completion_mask", "tool_mask", "rollout_logp"} & part.keys():
        part[name] = part[name][:, :response]
    return part


def loss_in_passes(
    loss_of: Callable[[dict[str, Any]], Tensor], parts: list[dict[str, Any]], model: nn.Module, accelerator: Accelerator
) -> Tensor:
    """The sum of the parts' losses. Where gradients are wanted, all parts but the last have been through their backward
    pass when this returns, and the caller's backward is the last one's: it alone synchronises gradients."""
    done: Tensor | float = 0.0
    for part in parts[:-1]:
        with _without_sync(model, accelerator):
            loss = loss_of(part)
            if loss.requires_grad:
                accelerator.backward(loss)
        done = done + loss.detach()
    return loss_of(parts[-1]) + done


@contextmanager
def _without_sync(model: nn.Module, accelerator: Accelerator) -> Iterator[None]:
    """Gradients of this process alone, unless `sync_each_batch` asks for less memory. DeepSpeed forbids `no_sync` where
    it shards gradients, and goes by accelerate's flag instead: otherwise each backward pass takes an optimiser step."""
    state = accelerator.gradient_state
    synchronises = state.sync_gradients
    state._set_sync_gradients(False)
    each_batch = state.plugin_kwargs.get("sync_each_batch", False)
    try:
        if each_batch or accelerator.distributed_type == DistributedType.DEEPSPEED:
            yield
        else:
            with accelerator.no_sync(model):
                yield
    finally:
        state._set_sync_gradients(synchronises)
