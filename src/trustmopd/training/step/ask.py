"""Let every frozen policy read a batch once. The answers stay with the batch, so that the next one can be asked while
this one is learnt from."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from trustmopd.policies import Rollouts
from trustmopd.policies.answers import swapped
from trustmopd.prompts.views import PromptView
from trustmopd.training.step.batch import Batch, StepContext


def ask(context: StepContext, batch: Batch) -> Batch:
    """The batch with answers. A teacher whose prompts are routed to it reads these alone, and so does its reference."""
    args, pool = context.args, context.pool
    rows: dict[str, list[int]] | None = None
    if args.rules.allocation.rule == "routed" and all(rollout.teacher is not None for rollout in batch.rollouts):
        owners = [pool.teachers[rollout.teacher or 0] for rollout in batch.rollouts]
        starts = [pool.references.get(owner) for owner in owners]
        rows = {name: _rows(owners, name) for name in pool.teachers}
        rows |= {name: _rows(starts, name) for name in pool.references.values()}
        rows |= {} if pool.initial is None else {pool.initial: list(range(len(batch)))}
    rollouts = Rollouts(
        *batch.sequences,
        batch.mask,
        args.per_device_train_batch_size,
        rows,
        args.max_tokens_per_micro_batch,
        args.answers_on_device_gib * 2**30,
    )
    views = {name: _viewed(rollouts, batch, view, name) for name, view in context.views.items()}
    rollouts = replace(rollouts, views=views)
    return replace(batch, answers=pool.ask(rollouts, timer=context.clock), asked=tuple(range(len(batch))))


def _viewed(rollouts: Rollouts, batch: Batch, view: PromptView, name: str) -> Rollouts:
    """The responses to the prompts as this policy reads them."""
    prompts = [rollout.read[name] for rollout in batch.rollouts]
    padded = torch.zeros(2, len(prompts), max(map(len, prompts)), dtype=batch.prompt_ids.dtype)
    for row, prompt in enumerate(prompts):
        padded[0, row, -len(prompt) :] = torch.tensor(prompt)
        padded[1, row, -len(prompt) :] = 1
    ids, mask = padded.to(batch.prompt_ids.device)  # in one copy
    input_ids = torch.cat([ids, swapped(batch.response_ids, view.swap)], dim=1)
    return replace(rollouts, input_ids=input_ids, attention_mask=torch.cat([mask, batch.attended], 1), swap=view.swap)


def _rows(owners: Sequence[str | None], name: str) -> list[int]:
    return [row for row, owner in enumerate(owners) if owner == name]
