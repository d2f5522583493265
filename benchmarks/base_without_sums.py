"""A base that knows other things than the student: the second base of the small world, trained on until it only guesses
at sums, and specialists of it. Then the command that diagnoses them.

    trustmopd reproduce testbed --pool two-bases --seeds 1 --only trust --only singlecap --out runs/reproduce-two-bases
    python benchmarks/base_without_sums.py runs/reproduce-two-bases --out runs/without-sums
"""

import random
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import torch
import typer
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM

from studies.small_world.reinforcement import build_specialist
from studies.small_world.supervised import Supervision, _batch
from studies.small_world.tokenizer import make_tokenizer
from studies.small_world.two_bases import OF_SECOND, SECOND_BASE, SEED
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

    tokenizer, model = make_tokenizer(), AutoModelForCausalLM.from_pretrained(reference).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95), weight_decay=0.01)
    with patch.object(Task, "value", guessed):
        for step in tqdm(range(steps), desc="base without sums"):
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * min(1, (step + 1) / 10) * max(0.02, 1 - step / steps)
            ids, labels = _batch(tokenizer, Supervision(batch_size=256), random.Random(f"nomath/{step}"))
            logits = model(input_ids=ids).logits[:, :-1]
            loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    model.eval().save_pretrained(out)
    tokenizer.save_pretrained(out)


def main(
    study: Annotated[Path, typer.Argument(help="Folder of `reproduce testbed --pool two-bases`.")],
    out: Annotated[Path, typer.Option(help="Folder of the new base and its specialists.")],
    steps: Annotated[int, typer.Option(help="Steps of 256 prompts.")] = 200,
) -> None:
    torch.set_num_threads(1)
    base = out / "reference"
    forget_sums(study / SECOND_BASE / "reference", base, steps)
    for domain in OF_SECOND:
        build_specialist(domain, base, out / domain, SEED, quiet=True)
    teachers = " ".join(f"'teachers.{name}={{model: {out / name}, reference: {base}}}'" for name in OF_SECOND)
    recipe = study / "diagnosis" / "singlecap" / "recipe.yaml"
    print(f"trustmopd diagnose {recipe} {teachers} output={out / 'run'}")


if __name__ == "__main__":
    typer.run(main)
