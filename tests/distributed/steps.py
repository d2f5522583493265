"""What both sides of the comparison run: called by the test in one process, and as a script in several."""

import copy
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import replay
import torch
from peft import LoraConfig
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback

from trustmopd import Teacher
from trustmopd.heads import use_implementation
from trustmopd.method import ScoreTotals
from trustmopd.training.probe import probe
from trustmopd.training.step import sample

#: Two steps of eight responses, each with some of the rows; one of them is empty.
LENGTHS = (*replay.LENGTHS, 4, 7, 2, replay.LONGEST, 10, 1, 11, 3)
#: Rows that do not fill the batches of two processes.
SOME_ROWS = (3, 15, 2, 8, 0, 1, 9, 12, 4, 6, 13)
SPLITS = {
    1: {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1},
    2: {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
}
#: "kernels" is "trust" through the fused head and objective, in Triton's interpreter; "budget_…" is a run under a token
#: budget, for which the two processes need different numbers of passes.
BUDGETS = {"budget_trust": "trust", "budget_adapters": "adapters", "budget_views": "views"}
RUNS = [*replay.RULES, "adapters", "views", *BUDGETS, *(["kernels"] if find_spec("triton") else [])]
#: Fewer than a step has, so that the processes must agree on a choice.
RECORDED = 5


class Synced(TrainerCallback):
    """How many numbers the processes have added up in gradients."""

    def __init__(self, trainer: replay.ReplayedTrainer):
        self.trainer, self.numbers = trainer, 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        wrapped = self.trainer.model_wrapped
        if state.global_step == 0 and isinstance(wrapped, DistributedDataParallel):
            wrapped.register_comm_hook(self, _count_and_reduce)


def _count_and_reduce(state: Synced, bucket: GradBucket) -> Future[Tensor]:
    state.numbers += bucket.buffer().numel()
    return allreduce_hook(None, bucket)


def options_of(num_processes: int) -> dict[str, Any]:
    common = {"lengths": LENGTHS, "max_steps": 2, "record_allocation_every": 1, "calibration_batches": 2}
    return {**common, **SPLITS[num_processes]}


def viewed() -> dict[str, Teacher]:
    pool = replay.specialists()
    return {name: Teacher(copy.deepcopy(model), view={"system": name}) for name, model in pool.items()}


def take_steps(folder: Path, calibration: str, adapters: Path, num_processes: int) -> None:
    """Leaves, by run, gradients and logs in `<run>.pt` and token records in `<run>/allocation`."""
    runs = {rule: {"calibration_path": calibration, **given} for rule, given in replay.RULES.items()}
    runs["adapters"] = {
        "teachers": {name: Teacher(adapter=adapters / name) for name in replay.TEACHERS},
        "peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        "gradient_checkpointing": True,
    }
    runs["views"] = {
        "teachers": viewed(),
        "teacher_placement": "sharded" if num_processes > 1 else "resident",
    }
    runs["kernels"] = runs["trust"]
    runs |= {name: {**runs[of], "max_tokens_per_micro_batch": 90} for name, of in BUDGETS.items()}
    runs["budget_views"]["teachers"] = viewed()  # sharding changes models in place
    for name in RUNS:
        head = use_implementation("fused" if name == "kernels" else "auto")
        with head, mock.patch.object(sample, "RECORDED", RECORDED):
            trainer = replay.trainer_of(folder / name, **options_of(num_processes), **runs[name])
            synchronised = Synced(trainer)
            trainer.add_callback(synchronised)
            run = replay.trained(trainer)
        assert run.trainer.accelerator.num_processes == num_processes
        if run.trainer.accelerator.is_main_process:
            found = {"gradients": run.gradients, "logs": run.logs, "passes": len(run.losses)}
            torch.save({**found, "synchronised": synchronised.numbers}, folder / f"{name}.pt")


def measure(folder: Path, num_processes: int) -> None:
    """Leaves what `calibrate` finds, and the mean scores of some rows, in `measured.json`."""
    trainer = replay.trainer_of(folder / "calibrate", **options_of(num_processes))
    calibration = trainer.calibrate()
    totals = ScoreTotals(len(replay.TEACHERS))
    for _, scored, result in probe(trainer, SOME_ROWS, seed=0, description="Some rows"):
        totals.add(result.scores, scored.at.mask)
    totals.totals = trainer.accelerator.reduce(totals.totals, "sum")
    if trainer.accelerator.is_main_process:
        found = {
            "calibration": {"mu": calibration.mu, "spread": calibration.spread, "tokens": calibration.tokens},
            "some_rows": {"mean": totals.mean.tolist(), "tokens": totals.tokens},
        }
        (folder / "measured.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    into, calibration, adapters = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    world_size = int(os.environ["WORLD_SIZE"])
    take_steps(into, calibration, adapters, world_size)
    measure(into, world_size)
    torch.distributed.destroy_process_group()
