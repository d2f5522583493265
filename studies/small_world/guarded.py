"""Is the guard quiet on healthy runs, and does it speak on sick ones? Every run is trained as a user would, 116 steps
for healthy ones and 40 for sick ones; what the guard said is read from their metrics, so rules can be replayed."""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trustmopd.quickstart.experiment import Experiment, Scale, reproducibly
from trustmopd.quickstart.prompts import prompt_set
from trustmopd.quickstart.shipped import checkpoint
from trustmopd.quickstart.tasks import DOMAINS
from trustmopd.runs import RunDirectory
from trustmopd.runs.guard import Guard
from trustmopd.util.files import write_text
from trustmopd.util.text_tables import TextTable, text_table

SICK_STEPS = 40


@dataclass(frozen=True)
class GuardCell:
    """A run: what differs from a healthy trust run on single-domain prompts. `change` alters checkpoints or prompts in
    the run's folder, and gives the fields of the recipe that name them."""

    name: str
    prompts: str = "singlecap"
    rule: str = "trust"
    seed: int = 0
    training: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[Path], Mapping[str, Any]] = lambda folder: {}


def healthy(seeds: int) -> Iterator[GuardCell]:
    """Seed by seed, so that an interrupted study has all rules."""
    for seed in range(seeds):
        for prompts in ("singlecap", "multicap"):
            for rule in ("trust", "uniform", "routed"):
                if (prompts, rule) != ("multicap", "routed"):
                    yield GuardCell(f"healthy/{prompts}-{rule}-{seed}", prompts, rule, seed)


def sick() -> Iterator[GuardCell]:
    short = {"max_steps": SICK_STEPS}
    yield GuardCell("sick/no-eos", training=short, change=_without_eos)
    yield GuardCell("sick/learning-rate", training={**short, "learning_rate": 1e-3})
    yield GuardCell("sick/long-domain", training={**short, "max_completion_length": 8}, change=_long_answers)
    yield GuardCell("sick/contradiction", training=short, change=_contradiction)
    yield GuardCell("sick/drifting", training=short, change=_drifting)
    yield GuardCell("sick/few-candidates", training={**short, "num_candidates": 2}, change=_unsolvable)
    yield GuardCell("sick/unsolvable", training=short, change=_unsolvable)


def run_guarded(out: Path, cells: list[GuardCell]) -> None:
    """Train those that are not finished."""
    for cell in cells:
        run = RunDirectory(out / cell.name)
        if (run.path / "done").is_file():
            continue
        shutil.rmtree(run.path, ignore_errors=True)
        run.path.mkdir(parents=True)
        experiment = Experiment(out, Scale())
        recipe = experiment.recipe(cell.name, cell.prompts, {"rule": cell.rule}, cell.seed, run.path)
        training = {**recipe.training, "record_allocation_every": 10, "save_strategy": "no", **cell.training}
        training.pop("save_steps")
        changes = {"training": training, **cell.change(run.path)}
        recipe = type(recipe).model_validate({**recipe.model_dump(exclude_none=True), **changes, "seeds": [cell.seed]})
        calibration = out / "calibration" / f"{cell.prompts}.json"
        if cell.rule == "trust" and cell.name.startswith("healthy") and calibration.is_file():
            recipe = recipe.model_copy(update={"calibration": calibration})
        with reproducibly():
            experiment.train(recipe)
        if cell.rule == "trust" and cell.name.startswith("healthy") and not calibration.is_file():
            calibration.parent.mkdir(exist_ok=True)
            shutil.copy(run.calibration, calibration)
        write_text(run.path / "done", "")


def guard_table(out: Path) -> TextTable:
    """What the guard says of every run below `out`, from its metrics: its rules as they are now."""
    rows = []
    for file in sorted(out.glob("*/*/metrics.jsonl")):
        lines = [line for line in map(json.loads, file.read_text().splitlines()) if "loss" in line]
        run = [f"{file.parent.parent.name}/{file.parent.name}", str(len(lines))]
        alarms = Guard().read(lines)
        rows += [
            [*run, alarm.rule.name, str(alarm.step), alarm.metric, f"{alarm.start:.3g} to {alarm.value:.3g}"]
            for alarm in alarms
        ] or [[*run, *"----"]]
    return text_table(("run", "steps", "rule", "at step", "metric", "value"), rows, left=("rule", "metric"))


def _without_eos(folder: Path) -> Mapping[str, Any]:
    """The math specialist gives EOS logit 0, far below its other likely tokens: it never stops."""

    def change(model: Any, reference: Any) -> None:
        head = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size, bias=False)
        head.weight.data = model.lm_head.weight.data.clone()
        head.weight.data[model.config.eos_token_id] = 0
        model.lm_head, model.config.tie_word_embeddings = head, False

    return _teachers(math=_altered(folder, "math", change))


def _contradiction(folder: Path) -> Mapping[str, Any]:
    """A second teacher is the reference minus what the math specialist learnt."""

    def change(model: Any, reference: Any) -> None:
        start = dict(reference.named_parameters())
        for name, weight in model.named_parameters():
            weight.data = 2 * start[name].data - weight.data

    opposed = _altered(folder, "math", change)
    return {"teachers": {"math": str(checkpoint("math")), "code": str(opposed)}}


def _drifting(folder: Path) -> Mapping[str, Any]:
    """The math specialist moved everywhere: noise of a third of each weight's standard deviation."""
    generator = torch.Generator().manual_seed(0)

    def change(model: Any, reference: Any) -> None:
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.data += 0.33 * weight.data.std() * torch.randn(weight.shape, generator=generator)

    return _teachers(math=_altered(folder, "math", change))


def _long_answers(folder: Path) -> Mapping[str, Any]:
    """Answers of the format domain have 10 to 13 tokens, in JSON; at most 8 are sampled."""
    rows = prompt_set("singlecap", SICK_STEPS * 64, seed=0).to_list()
    for row in rows:
        if row["domain"] == "if":
            word = row["prompt"][0]["content"].partition(":")[2]
            row["prompt"] = [{"role": "user", "content": f"json:{word}"}]
    return _prompts(folder, rows)


def _unsolvable(folder: Path) -> Mapping[str, Any]:
    """Characters of the language in any order."""
    rng, rows = random.Random(0), prompt_set("singlecap", SICK_STEPS * 64, seed=0).to_list()
    for row in rows:
        text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789+-():", k=rng.randint(5, 16)))
        row["prompt"] = [{"role": "user", "content": text}]
    return _prompts(folder, rows)


def _prompts(folder: Path, rows: list[dict[str, Any]]) -> Mapping[str, Any]:
    path = write_text(folder / "prompts.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    return {"prompts": {"path": str(path)}}


def _teachers(**others: Path) -> Mapping[str, Any]:
    return {"teachers": {name: str(others.get(name, checkpoint(name))) for name in DOMAINS}}


def _altered(folder: Path, name: str, change: Callable[[Any, Any], None]) -> Path:
    model, reference = (AutoModelForCausalLM.from_pretrained(checkpoint(each)) for each in (name, "reference"))
    change(model, reference)
    path = folder / "teacher"
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(checkpoint(name)).save_pretrained(path)
    return path
