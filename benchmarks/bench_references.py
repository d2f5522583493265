"""CPU seconds of a training step by the number of distinct references, with the small world's checkpoints.

    python benchmarks/bench_references.py

0 references are uniform weights; 1 is a common reference; 2 and 3 are teachers with references of their own, all of the
student's size: what a reference holds does not change its cost. Each case trains `--steps` steps after one of warm-up;
cases take turns, `--rounds` times, in one process and one thread; medians are shown. CPU time, not wall clock: a busy
machine changes it less.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from datasets import Dataset
from record import append, number, versions
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from trustmopd import Teacher, TrustMOPDConfig, TrustMOPDTrainer
from trustmopd.quickstart import prompt_set
from trustmopd.quickstart.experiment import quiet
from trustmopd.quickstart.shipped import checkpoint

RESULTS = Path(__file__).parent / "results" / "references.csv"
TEACHERS = ("math", "code", "if")
#: Distinct references → what each teacher is measured from; None is the common reference, the student.
REFERENCES = {
    0: (None, None, None),
    1: (None, None, None),
    2: (None, "math", "math"),
    3: (None, "math", "code"),
}


class Clock(TrainerCallback):
    """CPU seconds of each step."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps.append(time.process_time() - self.began)


def seconds(references: int, steps: int, batch: int) -> list[float]:
    clock = Clock()
    teachers = {
        name: Teacher(checkpoint(name), reference=checkpoint(own) if own else None)
        for name, own in zip(TEACHERS, REFERENCES[references], strict=True)
    }
    with tempfile.TemporaryDirectory() as folder:
        args = TrustMOPDConfig(
            output_dir=folder,
            allocation="trust" if references else "uniform",
            calibrated=False,
            max_steps=steps + 1,
            global_batch_size=batch,
            per_device_train_batch_size=batch,
            num_candidates=32,
            max_completion_length=16,
            record_allocation_every=0,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = TrustMOPDTrainer(
            model=str(checkpoint("reference")),
            teachers=teachers,
            args=args,
            train_dataset=Dataset.from_list(prompt_set("singlecap", (steps + 1) * batch, 0)),
            processing_class=AutoTokenizer.from_pretrained(checkpoint("reference")),
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return clock.steps[1:]


def main(
    steps: Annotated[int, typer.Option(help="Timed steps of each case in a round.")] = 8,
    rounds: Annotated[int, typer.Option(help="How often cases take turns.")] = 3,
    batch: Annotated[int, typer.Option(help="Prompts of a step.")] = 64,
    output: Annotated[Path, typer.Option(help="CSV file to append to.")] = RESULTS,
) -> None:
    """CPU seconds of a step with 0 to 3 distinct references."""
    torch.set_num_threads(1)
    quiet()
    taken: dict[int, list[float]] = {count: [] for count in REFERENCES}
    for count in [*REFERENCES] * rounds:
        taken[count] += seconds(count, steps, batch)
    medians = {count: statistics.median(found) for count, found in taken.items()}
    table = Table("references", "CPU s/step", "against one")
    for count, median in medians.items():
        table.add_row(str(count), number(median, 3), number(median / medians[1], 3))
    rows = [
        {"references": count, "batch": batch, "steps": len(taken[count]), "cpu_seconds": number(median, 4)}
        | versions("cpu")
        for count, median in medians.items()
    ]
    append(rows, output)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
