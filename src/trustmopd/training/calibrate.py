"""Algorithm 1 on real rollouts: the initial student writes, every teacher is scored, mu is the mean."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from accelerate import Accelerator

from trustmopd.method import ScoreTotals
from trustmopd.recipe.rollout_engines import VLLM
from trustmopd.rollouts.vllm_engine import vllm_version
from trustmopd.training.calibration import Calibration
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.probe import Probe
from trustmopd.training.run.across_ranks import first_decides
from trustmopd.training.run.cost import Bill
from trustmopd.training.run.identity import dependencies

logger = logging.getLogger(__name__)

#: A smaller mean displacement is rounding error.
_ROUNDING = 1e-6
#: Warn of a larger relative standard error of mu: at gamma 7 it changes the odds of a weight by 40%.
_UNCERTAIN = 0.05
#: Calibration rollouts do not depend on the training seed: one calibration serves all seeds.
CALIBRATION_SEED = 0


class Calibrator:
    """The calibration of a run: from a file that is given, from the run directory, from a checkpoint, or measured."""

    def __init__(self, args: TrustMOPDConfig, accelerator: Accelerator, bill: Bill, teachers: Sequence[str]):
        self.args = args
        self.accelerator = accelerator
        self.bill = bill
        self.teachers = teachers
        given = args.calibration_path if args.calibrates else None
        self.calibration = None if given is None else first_decides(lambda: self._load(Path(given)))

    def resume(self, saved: Path) -> None:
        """Use the calibration of a checkpoint."""
        if self.args.calibrates:
            self.calibration = first_decides(lambda: self._load(saved))

    def find(self) -> bool:
        """Whether a calibration is at hand, or none is needed. One in the run directory is used if it fits."""
        if self.args.calibrates and self.calibration is None:
            self.calibration = first_decides(self._saved)
        return self.calibration is not None or not self.args.calibrates

    def measure(self, probe: Probe) -> Calibration:
        """Measure mu and save it in the run directory."""
        began, args, identity = time.perf_counter(), self.args, self.bill.identity
        count = args.calibration_batches * args.global_batch_size
        rows = calibration_rows(identity.num_prompts, count)
        totals = ScoreTotals(len(self.teachers), self.accelerator.device)
        for _, scored, result in probe(rows, seed=CALIBRATION_SEED, description="Calibrating"):
            assert result.scores is not None
            totals.add(result.scores, scored.at.mask, scored.at.speaks)
        totals.totals = self.accelerator.reduce(totals.totals, "sum")
        if totals.tokens == 0:
            raise ValueError(
                f"the student wrote no token in {count} calibration rollouts, so mu is undefined. Check its EOS token."
            )
        sampler = args.rules.rollouts.engine
        measured = Calibration(
            mu=dict(zip(self.teachers, totals.mean.tolist(), strict=True)),
            spread=dict(zip(self.teachers, totals.spread.tolist(), strict=True)),
            tokens=totals.tokens,
            batches=args.calibration_batches,
            global_batch_size=args.global_batch_size,
            depends_on=dependencies(identity, args),
            engine=f"{sampler} {vllm_version()}" if sampler == VLLM else sampler,
        )
        check_habits(measured, args.min_relative_mu)
        self.calibration = measured
        if self.accelerator.is_main_process:
            measured.save(self.bill.run.calibration)
            self.bill.calibrated(time.perf_counter() - began)
        return measured

    def _saved(self) -> Calibration | None:
        saved = self.bill.run.calibration
        try:
            return self._load(saved) if saved.is_file() else None
        except ValueError as error:
            logger.warning("%s is not used, and will be replaced: %s", saved, error)
            return None

    def _load(self, path: Path) -> Calibration:
        calibration = Calibration.load(path)
        calibration.check(dependencies(self.bill.identity, self.args))
        check_habits(calibration, self.args.min_relative_mu)
        return calibration


def calibration_rows(num_prompts: int, count: int) -> list[int]:
    """`count` rows of the prompt set in a fixed random order. A small set is used several times, each time in another
    order."""
    order = np.random.default_rng(CALIBRATION_SEED)
    rows: list[int] = []
    while len(rows) < count:
        rows += order.permutation(num_prompts).tolist()
    return rows[:count]


def check_habits(calibration: Calibration, min_relative_mu: float) -> None:
    """Refuse a teacher that equals the reference up to rounding: divided by a tiny mu, its noise would look like trust.
    Warn of a mu that was measured on too few tokens."""
    for name, mu in calibration.mu.items():
        others = [value for other, value in calibration.mu.items() if other != name]
        limit = max(_ROUNDING, min_relative_mu * median(others) if others else 0.0)
        if min_relative_mu and mu < limit:
            against = f" (the median of the others is {median(others):.3g})" if others else ""
            raise ValueError(
                f"teacher '{name}' has mu = {mu:.3g}{against}: it hardly differs from the reference, so its noise "
                "would look like trust. Check its checkpoint, or drop it from the pool (in a recipe: "
                f"teachers.{name}=null). To use it anyway, set min_relative_mu = 0."
            )
        if (error := calibration.error(name)) > _UNCERTAIN:
            logger.warning(
                "mu of teacher '%s' is only known to ±%.0f%%, from %d tokens. Raise calibration_batches (now %d).",
                name, 100 * error, calibration.tokens, calibration.batches,
            )  # fmt: skip
