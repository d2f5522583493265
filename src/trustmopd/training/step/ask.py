"""Let every frozen policy read a batch once. The answers stay with the batch, so that the next one can be asked while
this one is learnt from."""

from dataclasses import replace

from trustmopd.policies import Rollouts
from trustmopd.training.step.batch import Batch, StepContext


def ask(context: StepContext, batch: Batch) -> Batch:
    """The batch with answers. A teacher whose prompts are routed to it reads these alone."""
    args, rows = context.args, None
    if all(rollout.teacher is not None for rollout in batch.rollouts):
        rows = {
            name: [row for row, rollout in enumerate(batch.rollouts) if rollout.teacher == k]
            for k, name in enumerate(context.pool.teachers)
        }
    rollouts = Rollouts(
        *batch.sequences,
        batch.mask,
        args.per_device_train_batch_size,
        rows,
        args.max_tokens_per_micro_batch,
        args.answers_on_device_gib * 2**30,
    )
    return replace(batch, answers=context.pool.ask(rollouts, timer=context.clock), asked=tuple(range(len(batch))))
