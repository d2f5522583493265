"""A base that knows other things than the student: the second base, trained on until it only guesses at sums, and
specialists of it. Then the command that diagnoses them.

    python -m studies.small_world --two-bases --seeds 1 --only trust --only singlecap
    python -m studies.small_world.base_without_sums runs/two-bases --out runs/without-sums
"""

import random
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import torch
import typer
from transformers import AutoModelForCausalLM

from studies.small_world.cells import Cell
from studies.small_world.models import make_tokenizer
from studies.small_world.pools import OF_SECOND, SECOND_BASE, SECOND_SEED
from studies.small_world.reinforcement import Reinforcement, build_specialist
from studies.small_world.supervised import Supervision, fit
from trustmopd.quickstart.tasks import Task


def forget_sums(reference: Path, out: Path, steps: int) -> None:
    """As the base was trained, but the answer to a sum is a random number with as many digits."""
    rng, value = random.Random("guess"), Task.value

    def guessed(task: Task) -> str:
        right = value(task)
        if right == task.operand:
            return right
        first = rng.choice("123456789" if len(right) > 1 else "0123456789")
        return first + "".join(rng.choices("0123456789", k=len(right) - 1))

    model = AutoModelForCausalLM.from_pretrained(reference)
    settings = Supervision(steps=steps, batch_size=256, learning_rate=1e-3)
    with patch.object(Task, "value", guessed):
        fit(model, settings, lambda step: min(1, (step + 1) / 10) * max(0.02, 1 - step / steps), "nomath")
    model.eval().save_pretrained(out)
    make_tokenizer().save_pretrained(out)


def main(
    study: Annotated[Path, typer.Argument(help="Folder of `--two-bases`.")],
    out: Annotated[Path, typer.Option(help="Folder of the new base and its specialists.")],
    steps: Annotated[int, typer.Option(help="Steps of 256 prompts.")] = 200,
) -> None:
    torch.set_num_threads(1)
    base = out / "reference"
    forget_sums(study / SECOND_BASE / "reference", base, steps)
    for domain in OF_SECOND:
        build_specialist(domain, base, out / domain, SECOND_SEED, Reinforcement())
    teachers = " ".join(f"'teachers.{name}={{model: {out / name}, reference: {base}}}'" for name in OF_SECOND)
    recipe = Cell("singlecap", "trust", 0).run(study).recipe
    print(f"trustmopd diagnose {recipe} calibration=null {teachers} output={out / 'run'}")


if __name__ == "__main__":
    typer.run(main)
