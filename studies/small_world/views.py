"""A teacher's own view of the prompt, in the small world: what is compared, and why, is in docs/results/views.md.

python -m studies.small_world.views rename       # the teachers of the other template
python -m studies.small_world.views instruct     # the student that follows system prompts and uses answers
python -m studies.small_world.views run          # all cells; finished ones stay
python -m studies.small_world.views show         # their scores, beside the initial student's
"""

import argparse
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from studies.small_world.models import CHAT_TEMPLATE
from studies.small_world.supervised import draw_mistakes
from trustmopd import diagnose_recipe, load_recipe
from trustmopd.evaluation.of_recipe import scored
from trustmopd.quickstart.experiment import Experiment, Scale, quiet, reproducibly
from trustmopd.quickstart.prompts import draw
from trustmopd.quickstart.shipped import MODELS, checkpoint
from trustmopd.quickstart.tasks import DOMAINS, MIXTURES, Task, parse
from trustmopd.recipe import Recipe
from trustmopd.runs import RunDirectory
from trustmopd.runs.layout import INITIAL
from trustmopd.util.files import write_json, write_text

SCALE = Scale(steps=24, calibration_batches=2, evaluation_prompts=200)
SEEDS = (0, 1, 2)
#: Pairs of tokens that change roles in the other template, and so in the models that are trained under it.
RENAMED = {"<user>": "<assistant>", "<assistant>": "<user>", "<eos>": "<bos>", "<bos>": "<eos>"}
INSTRUCTED, OTHER = "instructed", "other-template"
_STEPS, _BATCH, _RATE = 150, 54, 2e-3


def renamed(model: Path, out: Path) -> None:
    """The model that training under the other template gives: training commutes with a renaming of tokens."""
    weights, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    ids = list(range(len(tokenizer)))
    for one, other in RENAMED.items():
        ids[tokenizer.convert_tokens_to_ids(one)] = tokenizer.convert_tokens_to_ids(other)
    with torch.no_grad():
        rows = weights.get_input_embeddings().weight  # the output head is tied to it
        rows[: len(ids)] = rows[ids].clone()
    weights.config.eos_token_id = weights.generation_config.eos_token_id = tokenizer.bos_token_id
    template = CHAT_TEMPLATE
    for one, place in zip(RENAMED, "0123", strict=True):
        template = template.replace(one, f"\x00{place}")
    for other, place in zip(RENAMED.values(), "0123", strict=True):
        template = template.replace(f"\x00{place}", other)
    tokenizer.chat_template, tokenizer.eos_token, tokenizer.bos_token = template, "<bos>", "<eos>"
    weights.save_pretrained(out)
    tokenizer.save_pretrained(out)


def hinted(task: Task) -> str:
    """The privileged prompt: the right answer beside the question."""
    return f"{task.prompt}={task.answer()}"


def instructed(out: Path) -> list[float]:
    """The shipped reference, trained on: plain prompts are answered with its mistakes as before, prompts with the
    answer beside them rightly, and under the system prompt of a domain without the mistakes of that domain."""
    model, tokenizer = (kind.from_pretrained(checkpoint("reference")) for kind in (AutoModelForCausalLM, AutoTokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), _RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=_STEPS)
    losses = []
    for step in range(_STEPS):
        rows, starts = zip(*_examples(random.Random(f"instructed/{step}"), tokenizer), strict=True)
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        place = torch.arange(width)
        learnt = (place >= torch.tensor(starts)[:, None]) & (place < torch.tensor(list(map(len, rows)))[:, None])
        labels = torch.where(learnt, ids, -100)
        logits = model(input_ids=ids).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return losses


def _examples(rng: random.Random, tokenizer: Any) -> Iterator[tuple[list[int], int]]:
    """Token ids, and where the answer begins."""
    kinds = (*DOMAINS, *MIXTURES)
    for place in range(_BATCH):
        task = draw(kinds[place % len(kinds)], rng, "train")
        mistakes = draw_mistakes(task, rng, 0.6)
        turns = [{"role": "user", "content": task.prompt}]
        kind = place // len(kinds) % 3
        if kind == 1:
            turns, mistakes = [{"role": "user", "content": hinted(task)}], frozenset()
        if kind == 2:
            domain = rng.choice(DOMAINS)
            turns, mistakes = [{"role": "system", "content": domain}, *turns], mistakes - {domain}
        prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
        answer = tokenizer(task.answer(mistakes), add_special_tokens=False)["input_ids"]
        yield [*prompt, *answer, tokenizer.eos_token_id], len(prompt)


@dataclass(frozen=True)
class Arm:
    """A pool, and what else differs from the small world's recipe."""

    teachers: Mapping[str, Any]
    student: str
    training: Mapping[str, Any]
    rule: str = "trust"


def arms(out: Path) -> dict[str, Arm]:
    plain, other = {name: str(checkpoint(name)) for name in DOMAINS}, out / OTHER
    moved = {name: {"model": str(other / name), "reference": str(other / "reference")} for name in DOMAINS}
    own = {name: {**source, "view": {"template": "own"}} for name, source in moved.items()}
    shipped, student = str(checkpoint("reference")), str(out / INSTRUCTED)
    oracle = {"oracle": {"view": {"prompt": "hinted"}}}
    grown = {name: {"model": source, "reference": shipped} for name, source in plain.items()}
    return {
        "template-same": Arm(plain, shipped, {}),
        "template-own-view": Arm(own, shipped, {}),
        "template-no-view": Arm(moved, shipped, {"allow_template_mismatch": True}),
        "prompted": Arm({name: {"view": {"system": name}} for name in DOMAINS}, student, {}),
        "prompted-uniform": Arm({name: {"view": {"system": name}} for name in DOMAINS}, student, {}, "uniform"),
        "privileged": Arm(oracle, student, {}),
        "privileged-beside": Arm({**grown, **oracle}, student, {}),
        "specialists": Arm(grown, student, {}),
    }


def recipe(out: Path, name: str, arm: Arm, seed: int) -> Recipe:
    experiment = Experiment(out / name, SCALE, arm.student, arm.teachers)
    made = experiment.recipe(name, "singlecap", {"rule": arm.rule}, seed, out / name / f"seed-{seed}")
    path = Path(made.prompts.path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [{**row, "hinted": hinted(parse(row["prompt"][0]["content"]))} for row in rows]
    write_text(path, "".join(f"{json.dumps(row)}\n" for row in lines))
    return made.model_copy(update={"training": {**made.training, **arm.training, "record_allocation_every": 20}})


def run(out: Path, name: str, arm: Arm, seed: int) -> None:
    """Train and evaluate one cell, unless it has its scores; with the first seed, diagnose the pool."""
    made = recipe(out, name, arm, seed)
    run, experiment = RunDirectory(made.output), Experiment(out / name, SCALE, arm.student, arm.teachers)
    experiment.evaluate_references(made, [INITIAL])
    if run.scores.is_file():
        return
    write_text(made.output / "recipe.yaml", made.to_yaml())
    if seed == SEEDS[0]:
        diagnose_recipe(load_recipe(made.output / "recipe.yaml"), rollouts=32)
    experiment.train(made)
    experiment.evaluate_student(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["rename", "instruct", "run", "show"])
    parser.add_argument("--out", type=Path, default=Path("runs/views"))
    parser.add_argument("--only", action="append", default=[], help="An arm's name, or the start of one.")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    given = parser.parse_args()
    quiet()
    with reproducibly():
        if given.stage == "rename":
            for name in MODELS:
                renamed(checkpoint(name), given.out / OTHER / name)
            return
        if given.stage == "instruct":
            write_json(given.out / "instructed.json", {"losses": instructed(given.out / INSTRUCTED)})
            return
        chosen = {name: arm for name, arm in arms(given.out).items() if name.startswith(tuple(given.only) or "")}
        for seed in SEEDS[: given.seeds]:
            for name, arm in chosen.items():
                if given.stage == "run":
                    run(given.out, name, arm, seed)
                elif (scores := RunDirectory(given.out / name / f"seed-{seed}").scores).is_file():
                    evaluation = RunDirectory(given.out / name).evaluation
                    rows = {
                        name: json.loads(scores.read_text())[name],
                        **scored([evaluation / INITIAL], evaluation).scores,
                    }
                    for row, of_row in rows.items():
                        print(row, seed, {key: of_row[key] for key in ("overall", *DOMAINS)})


if __name__ == "__main__":
    main()
