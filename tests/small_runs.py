"""Recipes of seconds over small real checkpoints, and the steps that their runs logged."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiny
import yaml

from trustmopd import TrustMOPDConfig, TrustMOPDTrainer

TRAINING = {
    "max_steps": 4,
    "learning_rate": 1e-3,
    "num_candidates": 16,
    "global_batch_size": 8,
    "per_device_train_batch_size": 4,
    "max_completion_length": 6,
    "calibration_batches": 1,
    "save_steps": 2,
    "save_total_limit": 9,
    "warmup_steps": 0,
    "record_allocation_every": 0,
    "use_cpu": True,
}


def checkpoints(folder: Path) -> dict[str, str]:
    """A base and three specialists of it, on disk."""
    base = tiny.model(0)
    moved = {name: tiny.specialist(base, seed) for seed, name in enumerate(("math", "code", "if"), start=1)}
    return {name: tiny.save(model, folder / name) for name, model in {"base": base, **moved}.items()}


def recipe(folder: Path, models: Mapping[str, str], training: Mapping[str, Any] | None = None, **fields: Any) -> Path:
    """In `folder`, with 24 prompts; its run is `folder / "run"`. Every model but `base` is a teacher."""
    tiny.prompts(24).to_json(folder / "prompts.jsonl")
    recipe = {
        "name": "tiny",
        "student": models["base"],
        "teachers": {name: path for name, path in models.items() if name != "base"},
        "prompts": {"path": str(folder / "prompts.jsonl")},
        "training": {**TRAINING, **(training or {})},
        "output": str(folder / "run"),
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe | fields, sort_keys=False))
    return path


def trainer(folder: Path, student: Any = None, teachers: Any = None, **settings: Any) -> TrustMOPDTrainer:
    """Of the same models in memory, or others, on 24 prompts; its run is `folder`."""
    base = tiny.model(0)
    own = {name: tiny.specialist(base, seed) for seed, name in enumerate(("math", "code", "if"), start=1)}
    given = {**TRAINING, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, **settings}
    return TrustMOPDTrainer(
        base if student is None else student,
        own if teachers is None else teachers,
        args=TrustMOPDConfig(output_dir=str(folder / "checkpoints"), run_dir=str(folder), **given),
        train_dataset=tiny.prompts(24),
        processing_class=tiny.tokenizer(),
    )


def steps_of(run: Path | str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that are steps; the last line of a finished run is its summary."""
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]
