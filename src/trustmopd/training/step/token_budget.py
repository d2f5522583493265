"""A step in several passes: rows of similar length together, under a budget of tokens, with little padding.

The loss is a sum over responses, so the gradient is the same however they are grouped.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator, DistributedType
from torch import Tensor, nn

from trustmopd.policies.reading import rows_under
from trustmopd.training.step.batch import Batch


def micro_batches(batch: Batch, max_tokens: int, accelerator: Accelerator) -> list[Batch]:
    """Split the batch into parts of at most `max_tokens` tokens. Every process gets the same number of parts, because
    the processes make each pass through the student together."""
    _, attention_mask = batch.sequences
    lengths = (attention_mask != 0).sum(dim=1).tolist()
    mine = torch.tensor(len(rows_under(max_tokens, lengths)), device=accelerator.device)
    most = int(accelerator.gather(mine).max())
    return [batch.part(rows).trimmed() for rows in rows_under(max_tokens, lengths, most)]


def loss_in_passes(
    loss_of: Callable[[Batch], Tensor], parts: list[Batch], model: nn.Module, accelerator: Accelerator
) -> Tensor:
    """The sum of the parts' losses. With gradients, this function runs the backward pass of all parts except the last.
    The caller runs the last one, which is the only one that synchronises gradients."""
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
    """Gradients stay in this process, unless `sync_each_batch` is set to save memory. DeepSpeed forbids `no_sync` if it
    shards gradients. It uses accelerate's flag instead; without it, each backward pass would make an optimizer step."""
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
