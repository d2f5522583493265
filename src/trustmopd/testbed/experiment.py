"""One cell of the comparison: a prompt set, a method, a seed → scores on the evaluation splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from trustmopd.files import read_json
from trustmopd.statistics import recovery
from trustmopd.testbed.checkpoints import CARD, MODELS, SHIPPED, checkpoint
from trustmopd.testbed.prompts import evaluation_set, prompt_set
from trustmopd.testbed.sampling import sample_scores
from trustmopd.testbed.tasks import DOMAINS
from trustmopd.training import TrustMOPDConfig, TrustMOPDTrainer

#: The rows that tell the quickstart's story, in its order, as people read them.
STORY = {"initial": "initial student", "uniform": "uniform", "trust": "trust", "routed-teachers": "routed teachers"}
PROMPT_SETS = ("singlecap", "multicap")
#: The rows of the paper's tables, as changes to the configuration below.
METHODS: Mapping[str, Mapping[str, Any]] = {
    "trust": {},
    "uniform": {"allocation": "uniform"},
    "random": {"allocation": "random"},
    **{f"single-{domain}": {"allocation": "single", "single_teacher": domain} for domain in DOMAINS},
    "routed": {"allocation": "routed"},
    "likelihood": {"score": "likelihood"},
    "negative-entropy": {"score": "negative_entropy"},
    "teacher-student-kl": {"score": "teacher_student_kl"},
    "without-mu": {"calibrated": False},
    "response-level": {"granularity": "response"},
    **{f"gamma-{gamma}": {"gamma": float(gamma)} for gamma in (3, 5, 9)},
}


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
        card = read_json(self.root / CARD, what="the small world's card", remedy="Build it: trustmopd testbed build.")
        return {name: stage["sha256"]["model.safetensors"][:16] for name, stage in card["stages"].items()}

    @property
    def reference(self) -> str:
        return str(checkpoint("reference", self.root))

    @property
    def teachers(self) -> dict[str, str]:
        return {name: str(checkpoint(name, self.root)) for name in MODELS if name in DOMAINS}


def make_trainer(
    world: World, prompts: str, method: str, seed: int, out: Path, scale: Scale, **changes: Any
) -> TrustMOPDTrainer:
    """The trainer that any user would build, on the small world's checkpoints."""
    dataset = prompt_set(prompts, scale.steps * scale.batch_size, scale.prompt_seed)
    args = TrustMOPDConfig(
        **{
            "output_dir": str(out),
            "seed": seed,
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
            **METHODS[method],
            **changes,
        }
    )
    trainer = TrustMOPDTrainer(world.reference, world.teachers, args=args, train_dataset=dataset)
    trainer.remove_callback(PrinterCallback)  # without a bar, transformers prints every step's metrics instead
    return trainer


def evaluate(model: Any, tokenizer: Any, scale: Scale, seed: int = 0) -> dict[str, float]:
    """Share of right answers by domain, one sample at temperature 0.6 a prompt, and their unweighted mean."""
    scores = {
        domain: sample_scores(model, tokenizer, evaluation_set(domain, scale.evaluation_prompts), seed=seed).mean
        for domain in DOMAINS
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
    *,
    callbacks: Sequence[TrainerCallback] = (),
    **changes: Any,
) -> dict[str, float]:
    """Train one student and score it; what the run wrote stays in `out`."""
    trainer = make_trainer(world, prompts, method, seed, out, scale, **changes)
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train()
    return evaluate(trainer.model, trainer.processing_class, scale)
