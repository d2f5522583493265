"""Memory over a run with all frozen policies on Ray: the small world as the quickstart trains it, on this CPU.

    python benchmarks/bench_ray_memory.py                   # 50 steps, a row every five

Three teachers and the reference live in actors. A row has the resident memory of the training process and of each
actor, the questions that actors keep, and what Ray's shared memory holds between steps.
"""

import gc
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from record import append, number, versions
from rich.console import Console
from rich.table import Table
from transformers import TrainerCallback

from trustmopd.quickstart.experiment import Experiment, Scale
from trustmopd.training.prepare import prepare

RESULTS = Path(__file__).parent / "results" / "ray-memory.csv"
EVERY = 5
_MIB = 2**20


class Watch(TrainerCallback):
    """Looks between steps."""

    def __init__(self, trainer: Any, output: Path, table: Table):
        self.hosts, self.output, self.table = trainer.pool.elsewhere._hosts, output, table

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % EVERY:
            return
        import ray

        gc.collect()
        time.sleep(1)  # until Ray's own counters are up to date
        actors = [(host, actor) for host in self.hosts for actor in host.replicas]
        pids = [ray.get(actor.load.remote(host.order)).process for host, actor in actors]
        total, free = ray.cluster_resources(), ray.available_resources()
        row = {
            "step": state.global_step,
            "driver_mib": number(psutil.Process().memory_info().rss / _MIB, 1),
            "actors_mib": " ".join(number(psutil.Process(pid).memory_info().rss / _MIB, 1) for pid in pids),
            "questions_kept": sum(ray.get([actor.kept.remote() for _, actor in actors])),
            "shared_mib": number((total["object_store_memory"] - free["object_store_memory"]) / _MIB, 2),
        }
        self.table.add_row(*map(str, row.values()))
        append([{**row, **versions("cpu")}], self.output)


def main(
    steps: Annotated[int, typer.Option(help="Training steps.")] = 50,
    output: Annotated[Path, typer.Option(help="CSV file to append to.")] = RESULTS,
) -> None:
    """Record memory while a run with policies on Ray goes on."""
    table = Table("step", "driver MiB", "actors MiB", "questions kept", "shared MiB")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = Experiment(folder, Scale(steps=steps)).recipe(
            "trust", "multicap", {"rule": "trust"}, 0, folder / "run"
        )
        trainer = prepare(recipe, teacher_placement="ray", use_cpu=True).trainer(0)
        trainer.add_callback(Watch(trainer, output, table))
        trainer.train()
        trainer.pool.close()
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
