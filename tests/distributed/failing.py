"""As a script, in each of several processes: training in which the last one dies, hangs or meets a NaN half-way, or has
no host memory (`memory`)."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engines
import psutil
import torch
from torch import Tensor, nn

from trustmopd.cli import leaving
from trustmopd.training.step import Batch
from trustmopd.training.step import candidates as scoring

#: The last checkpoint before a failure has this step.
WHOLE = 2
MOMENTS = ("step", "checkpoint", "calibration", "hang", "nan")


class Failing(engines.Watched):
    moment = ""

    @property
    def at_its_moment(self) -> bool:
        return self.state.global_step >= WHOLE and self.accelerator.is_last_process

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        if self.moment in ("step", "hang") and self.at_its_moment:
            os.kill(os.getpid(), signal.SIGSTOP if self.moment == "hang" else signal.SIGKILL)
        return super().training_step(model, inputs, num_items_in_batch)

    def _save_rng_state(self, output_dir: str) -> None:
        if self.moment == "checkpoint" and self.state.global_step > WHOLE and self.at_its_moment:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._save_rng_state(output_dir)

    def objective(self, batch: Batch) -> Any:
        if self.moment == "calibration" and self.accelerator.is_last_process:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().objective(batch)

    def _compute_loss(self, *args: Any) -> tuple:
        if self.moment == "nan" and self.at_its_moment:
            check = scoring._check_finite
            scoring._check_finite = lambda given, step: check({n: x * float("nan") for n, x in given.items()}, step)
        return super()._compute_loss(*args)


if __name__ == "__main__":
    torch.set_num_threads(1)
    Failing.moment = sys.argv[1]
    if Failing.moment == "memory" and os.environ["RANK"] == "1":
        memory = SimpleNamespace(available=0, total=psutil.virtual_memory().total)
        psutil.virtual_memory = lambda: memory
    engines.Watched = Failing  # what `train` trains with
    leaving(lambda: sys.exit(engines.train(Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])))
