"""Algorithm 1 on real rollouts: the initial student writes, every teacher is scored, mu is the mean."""

from typing import TYPE_CHECKING

import numpy as np

from trustmopd.method import Calibration, ScoreTotals
from trustmopd.training.manifest import dependencies
from trustmopd.training.rollouts import judge_rollouts

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer

#: Calibration rollouts do not depend on the training seed: one calibration serves all seeds.
CALIBRATION_SEED = 0


def calibration_rows(num_prompts: int, count: int) -> list[int]:
    """`count` rows of the prompt set in a fixed random order; a small set is gone through again in another order."""
    order = np.random.default_rng(CALIBRATION_SEED)
    rows: list[int] = []
    while len(rows) < count:
        rows += order.permutation(num_prompts).tolist()
    return rows[:count]


def measure_calibration(trainer: "TrustMOPDTrainer") -> Calibration:
    args, teachers = trainer.args, trainer.pool.teachers
    count = args.calibration_batches * args.global_batch_size
    totals = ScoreTotals(len(teachers), trainer.accelerator.device)
    for _, scored, result in judge_rollouts(
        trainer, calibration_rows(len(trainer.train_dataset), count), seed=CALIBRATION_SEED, description="Calibrating"
    ):
        assert result.scores is not None
        totals.add(result.scores, scored.at.mask)
    totals.totals = trainer.accelerator.reduce(totals.totals, "sum")
    if totals.tokens == 0:
        raise ValueError(
            f"the student wrote no token in {count} calibration rollouts, so mu is undefined. Check its EOS token."
        )
    return Calibration(
        mu=dict(zip(teachers, totals.mean.tolist(), strict=True)),
        spread=dict(zip(teachers, totals.spread.tolist(), strict=True)),
        tokens=totals.tokens,
        batches=args.calibration_batches,
        global_batch_size=args.global_batch_size,
        depends_on=dependencies(trainer),
    )
