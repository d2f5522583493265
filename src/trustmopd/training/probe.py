"""Rollouts of the current student, with candidates and objective as in training but without a step: for calibration and
diagnosis."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from accelerate.utils import set_seed
from tqdm.auto import tqdm

from trustmopd.method import Objective
from trustmopd.training.prompt_lengths import DRAW, SURPLUS
from trustmopd.training.step.batch import Batch, batch_of
from trustmopd.training.step.candidates import ScoredCandidates
from trustmopd.training.step.token_budget import micro_batches

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer


Probed: TypeAlias = tuple[Batch, ScoredCandidates, Objective]
#: `probe`, of a trainer.
Probe: TypeAlias = Callable[..., Iterator[Probed]]


@torch.no_grad()
def probe(trainer: "TrustMOPDTrainer", rows: Sequence[int], *, seed: int, description: str) -> Iterator[Probed]:
    """One response to each prompt of `rows`, in batches of training's size; each process yields its share. The
    trainer's random state, mode and metrics are left unchanged."""
    accelerator, args = trainer.accelerator, trainer.args
    training = trainer.model.training
    trainer.model.eval()
    try:
        with fixed_random_state(seed):
            starts = range(0, len(rows), args.global_batch_size)
            for start in tqdm(starts, desc=description, unit="batch", disable=not accelerator.is_main_process):
                block = rows[start : start + args.global_batch_size]
                batch = _roll_out(trainer, block, [f"rollouts/{seed}/{start + place}" for place in range(len(block))])
                try:
                    for part in _parts(trainer, batch):
                        yield part, *trainer.objective(part)
                finally:
                    batch.release()
    finally:
        trainer.model.train(training)
        trainer._metrics["eval"].clear()
        trainer.step_log.forget_time()


def _roll_out(trainer: "TrustMOPDTrainer", block: Sequence[int], draws: Sequence[str]) -> Batch:
    """`draws` name the random numbers; no training step uses the same. Every process writes the same number of
    responses; those beyond the block are masked."""
    accelerator, args = trainer.accelerator, trainer.args
    under_budget = args.max_tokens_per_micro_batch is not None
    step = accelerator.num_processes * (1 if under_budget else args.per_device_train_batch_size)
    filled = -(-len(block) // step) * step
    examples = []
    for place in range(accelerator.process_index, filled, accelerator.num_processes):
        example, draw = trainer.train_dataset[block[place % len(block)]], draws[place % len(block)]
        examples.append({**example, SURPLUS: place >= len(block), DRAW: draw})
    return batch_of(trainer._generate_and_score_completions(examples))


def _parts(trainer: "TrustMOPDTrainer", batch: Batch) -> list[Batch]:
    if (budget := trainer.args.max_tokens_per_micro_batch) is not None:
        return micro_batches(batch, budget, trainer.accelerator)
    size = trainer.args.per_device_train_batch_size
    return [batch.part(range(start, start + size)) for start in range(0, len(batch), size)]


@contextmanager
def fixed_random_state(seed: int) -> Iterator[None]:
    """Inside, random numbers follow from `seed` and the process; afterwards every generator has its old state."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        set_seed(seed, device_specific=True)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
