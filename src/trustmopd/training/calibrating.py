"""Algorithm 1 on real rollouts: the initial student writes, every teacher is scored, mu is the mean."""

import logging
import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from accelerate import Accelerator

from trustmopd.engines.vllm_package import vllm_version
from trustmopd.method import Calibration, ScoreTotals
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.rollouts import JudgeRollouts

logger = logging.getLogger(__name__)

#: Below this a mean displacement is rounding.
_ROUNDING = 1e-6
#: A relative standard error of mu above this is told: at gamma 7 it changes a weight's odds by 40%.
_UNCERTAIN = 0.05
#: Calibration rollouts do not depend on the training seed: one calibration serves all seeds.
CALIBRATION_SEED = 0


def calibration_rows(num_prompts: int, count: int) -> list[int]:
    """`count` rows of the prompt set in a fixed random order; a small set is gone through again in another order."""
    order = np.random.default_rng(CALIBRATION_SEED)
    rows: list[int] = []
    while len(rows) < count:
        rows += order.permutation(num_prompts).tolist()
    return rows[:count]


def measure_calibration(
    judge_rollouts: JudgeRollouts,
    accelerator: Accelerator,
    args: TrustMOPDConfig,
    *,
    teachers: Sequence[str],
    num_prompts: int,
    depends_on: dict[str, Any],
) -> Calibration:
    count = args.calibration_batches * args.global_batch_size
    rows = calibration_rows(num_prompts, count)
    totals = ScoreTotals(len(teachers), accelerator.device)
    for _, scored, result in judge_rollouts(rows, seed=CALIBRATION_SEED, description="Calibrating"):
        assert result.scores is not None
        totals.add(result.scores, scored.at.mask)
    totals.totals = accelerator.reduce(totals.totals, "sum")
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
        depends_on=depends_on,
        engine=f"vllm {vllm_version()}" if args.use_vllm else "transformers",
    )


def check_habits(calibration: Calibration, min_relative_mu: float) -> None:
    """Refuse a teacher that is the reference but for rounding: divided by next to nothing, its noise would pass for
    trust. Tell of a mu that was measured on too few tokens to be relied on."""
    for name, mu in calibration.mu.items():
        others = [value for other, value in calibration.mu.items() if other != name]
        limit = max(_ROUNDING, min_relative_mu * median(others) if others else 0.0)
        if min_relative_mu and mu < limit:
            against = f" (the median of the others is {median(others):.3g})" if others else ""
            raise ValueError(
                f"teacher '{name}' has mu = {mu:.3g}{against}: it hardly differs from the reference, and its noise "
                "would pass for trust. Check its checkpoint, or drop it from the pool (in a recipe: "
                f"teachers.{name}=null). If it is meant to be there, set min_relative_mu = 0."
            )
        error = calibration.spread[name] / mu / math.sqrt(calibration.tokens)
        if error > _UNCERTAIN:
            logger.warning(
                "mu of teacher '%s' is known to ±%.0f%% only, from %d tokens. Raise calibration_batches (now %d).",
                name, 100 * error, calibration.tokens, calibration.batches,
            )  # fmt: skip
