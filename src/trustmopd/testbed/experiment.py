"""One cell of the comparison: a prompt set, a method, a seed → scores on the evaluation splits."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from trustmopd.files import write_json, write_text
from trustmopd.recipe import Recipe
from trustmopd.runs import RunDirectory
from trustmopd.statistics import recovery
from trustmopd.testbed.checkpoints import MODELS, SHIPPED, checkpoint, expected_digests
from trustmopd.testbed.prompts import evaluation_set, prompt_set
from trustmopd.testbed.sampling import sample_scores
from trustmopd.testbed.tasks import DOMAINS
from trustmopd.training import TrustMOPDTrainer
from trustmopd.training.from_recipe import config_of, teachers_of

#: The rows that tell the quickstart's story, in its order, as people read them.
STORY = {"initial": "initial student", "uniform": "uniform", "trust": "trust", "routed-teachers": "routed teachers"}
PROMPT_SETS = ("singlecap", "multicap")
#: The rows of the paper's tables, as a recipe's `allocation`.
METHODS: Mapping[str, Mapping[str, Any]] = {
    "trust": {},
    "uniform": {"rule": "uniform"},
    "random": {"rule": "random"},
    **{f"single-{domain}": {"rule": "single", "teacher": domain} for domain in DOMAINS},
    "routed": {"rule": "routed"},
    "likelihood": {"score": "likelihood"},
    "negative-entropy": {"score": "negative_entropy"},
    "teacher-student-kl": {"score": "teacher_student_kl"},
    "without-mu": {"calibrated": False},
    "response-level": {"granularity": "response"},
    **{f"gamma-{gamma}": {"gamma": float(gamma)} for gamma in (3, 5, 9)},
}
#: Rows under their other name: 7 is the default gamma.
ALIASES = {"gamma-7": "trust"}


@dataclass(frozen=True)
class Scale:
    """How much of everything: the default is the paper's 116 steps of 64 prompts; tests run a smaller one."""

    steps: int = 116
    batch_size: int = 64
    learning_rate: float = 1e-4
    num_candidates: int = 32
    max_completion_length: int = 16
    calibration_batches: int = 8
    evaluation_prompts: int = 1000
    diagnosis_rollouts: int = 256
    prompt_seed: int = 0


@dataclass(frozen=True)
class World:
    """Verified checkpoints of one reference and its specialists."""

    root: Path = SHIPPED

    def fingerprint(self) -> dict[str, str]:
        return {name: expected_digests(name, self.root)["model.safetensors"][:16] for name in MODELS}

    @property
    def reference(self) -> str:
        return str(checkpoint("reference", self.root))

    @property
    def teachers(self) -> dict[str, str]:
        return {name: str(checkpoint(name, self.root)) for name in MODELS if name in DOMAINS}


def make_recipe(
    world: World, prompts: str, method: str, seed: int, out: Path, scale: Scale, prompts_in: Path
) -> Recipe:
    """What a run is made of, in the form that any user would write it."""
    return Recipe.model_validate(
        {
            "name": f"testbed-{prompts}-{method}",
            "student": world.reference,
            "teachers": world.teachers,
            "prompts": {"path": str(prompts_in / f"{prompts}.jsonl")},
            "allocation": dict(METHODS[method]),
            "training": {
                "max_steps": scale.steps,
                "global_batch_size": scale.batch_size,
                "per_device_train_batch_size": scale.batch_size,
                "learning_rate": scale.learning_rate,
                "num_candidates": scale.num_candidates,
                "max_completion_length": scale.max_completion_length,
                "calibration_batches": scale.calibration_batches,
                "bf16": False,  # 0.87M parameters: float32 is as fast, and exact
                "gradient_checkpointing": False,
                "save_strategy": "no",
                "record_allocation_every": 1,
                "disable_tqdm": True,
            },
            "seeds": [seed],
            "output": out,
        }
    )


def make_trainer(
    world: World, prompts: str, method: str, seed: int, out: Path, scale: Scale, prompts_in: Path, **changes: Any
) -> TrustMOPDTrainer:
    """The trainer of that recipe. Recipe and prompts are written down, so that analysis can go back to them."""
    recipe = make_recipe(world, prompts, method, seed, out, scale, prompts_in)
    dataset = prompt_set(prompts, scale.steps * scale.batch_size, scale.prompt_seed)
    write_text(RunDirectory(out).recipe, recipe.to_yaml())
    write_text(Path(recipe.prompts.path), "".join(f"{json.dumps(row)}\n" for row in dataset))
    trainer = TrustMOPDTrainer(
        recipe.student, teachers_of(recipe), args=config_of(recipe, seed, **changes), train_dataset=dataset
    )
    trainer.remove_callback(PrinterCallback)  # without a bar, transformers prints every step's metrics instead
    return trainer


def evaluate(model: Any, tokenizer: Any, scale: Scale, seed: int = 0, bar: str | None = None) -> dict[str, float]:
    """Share of right answers by domain, one sample at temperature 0.6 a prompt, and their unweighted mean. Progress is
    shown under the name `bar`."""
    scores = {
        domain: sample_scores(model, tokenizer, evaluation_set(domain, scale.evaluation_prompts), seed=seed).mean
        for domain in tqdm(DOMAINS, desc=bar, unit="domain", disable=bar is None)
    }
    return {**scores, "overall": sum(scores.values()) / len(scores)}


def evaluate_checkpoint(folder: str | Path, scale: Scale, device: str) -> dict[str, float]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
    return evaluate(model, AutoTokenizer.from_pretrained(folder), scale)


def reference_scores(
    world: World, scale: Scale, device: str, average: Path | None = None
) -> dict[str, dict[str, float]]:
    """The rows that need no distillation: initial student, each specialist, routed teachers, parameter average."""
    folders = {"initial": world.reference, **{f"teacher-{name}": path for name, path in world.teachers.items()}}
    bar = tqdm(folders.items(), desc="Evaluating initial student and teachers", unit="model")
    rows = {name: evaluate_checkpoint(folder, scale, device) for name, folder in bar}
    routed = {domain: rows[f"teacher-{domain}"][domain] for domain in DOMAINS}
    rows["routed-teachers"] = {**routed, "overall": sum(routed.values()) / len(routed)}
    if average is not None:
        rows["parameter-average"] = evaluate_checkpoint(average, scale, device)
    return with_recovery(rows, rows)


def with_recovery(
    rows: Mapping[str, Mapping[str, float]], references: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Add the share of the gap between initial student and routed teachers that each row closes."""
    low, high = references["initial"]["overall"], references["routed-teachers"]["overall"]
    return {name: {**row, "recovery": recovery(row["overall"], low, high)} for name, row in rows.items()}


def run_cell(
    world: World,
    prompts: str,
    method: str,
    seed: int,
    out: Path,
    scale: Scale,
    prompts_in: Path,
    *,
    references: Mapping[str, Mapping[str, float]],
    callbacks: Sequence[TrainerCallback] = (),
    **changes: Any,
) -> dict[str, float]:
    """Train one student and score it; what the run wrote stays in `out`, its scores among it."""
    trainer = make_trainer(world, prompts, method, seed, out, scale, prompts_in, **changes)
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train()
    scores = evaluate(trainer.model, trainer.processing_class, scale)
    write_scores(out, method, scores, references, scale)
    return scores


def write_scores(
    run: Path, method: str, scores: Mapping[str, float], references: Mapping[str, Mapping[str, float]], scale: Scale
) -> None:
    """The scores of a run: the rows that need no distillation, and its own."""
    rows = {**references, **with_recovery({method: scores}, references)}
    write_json(RunDirectory(run).scores, with_prompts(rows, scale))


def with_prompts(rows: Mapping[str, Mapping[str, float]], scale: Scale) -> dict[str, dict[str, Any]]:
    """The rows, with the number of prompts behind each score, as `trustmopd evaluate` notes it."""
    asked = {domain: {"domain": domain, "prompts": scale.evaluation_prompts} for domain in DOMAINS}
    return {name: {**row, "benchmarks": asked} for name, row in rows.items()}
