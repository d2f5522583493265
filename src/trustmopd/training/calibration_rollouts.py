"""Rollouts of the current student, judged as in training but without a step: for calibration and diagnosis."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from tqdm.auto import tqdm
from trl.trainer.utils import split_tensor_dict

from trustmopd.method import Objective
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.prompt_lengths import DRAW, SURPLUS
from trustmopd.training.step.candidates import ScoredCandidates
from trustmopd.training.step.token_budget import micro_batches

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer


Judged: TypeAlias = tuple[dict[str, Any], ScoredCandidates, Objective]
#: `TrustMOPDTrainer.judge_rollouts`.
JudgeRollouts: TypeAlias = Callable[..., Iterator[Judged]]


@torch.no_grad()
def judge_rollouts(
    trainer: "TrustMOPDTrainer", rows: Sequence[int], *, seed: int, description: str
) -> Iterator[Judged]:
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
                for part in _parts(batch, args, accelerator):
                    yield part, *trainer.judge(part)
    finally:
        trainer.model.train(training)
        trainer.judge_of_step.release()
        trainer._metrics["eval"].clear()
        trainer.step_log.forget_time()


def _roll_out(trainer: "TrustMOPDTrainer", block: Sequence[int], draws: Sequence[str]) -> dict[str, Any]:
    """`draws` name the random numbers; no training step uses the same. Every process writes the same number of
    responses; those beyond the block are masked."""
    accelerator, args = trainer.accelerator, trainer.args
    under_budget = args.max_tokens_per_micro_batch is not None
    step = accelerator.num_processes * (1 if under_budget else args.per_device_train_batch_size)
    filled = -(-len(block) // step) * step
    places = range(accelerator.process_index, filled, accelerator.num_processes)
    batch = trainer._generate_and_score_completions(
        [
            {
                **trainer.train_dataset[block[place % len(block)]],
                SURPLUS: place >= len(block),
                DRAW: draws[place % len(block)],
            }
            for place in places
        ]
    )
    batch["place"] = torch.tensor([block[place % len(block)] for place in places])
    return batch


def _parts(batch: dict[str, Any], args: TrustMOPDConfig, accelerator: Accelerator) -> list[dict[str, Any]]:
    if args.max_tokens_per_micro_batch is not None:
        return micro_batches(batch, args.max_tokens_per_micro_batch, accelerator)
    return split_tensor_dict(batch, len(batch["row"]) // args.per_device_train_batch_size)


@contextmanager
def fixed_random_state(seed: int) -> Iterator[None]:
    """Inside, random numbers follow from `seed` and the process; afterwards every generator has its old state."""
    cuda = torch.cuda.is_available()
    before = (
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
        torch.cuda.get_rng_state_all() if cuda else None,
    )
    set_seed(seed, device_specific=True)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
        if before[3] is not None:
            torch.cuda.set_rng_state_all(before[3])
