"""`cost.json`: what a run cost. Scored models a step, device time, peak memory, and the one-off calibration apart."""

import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trustmopd.files import read_json, write_json
from trustmopd.teachers import REFERENCE
from trustmopd.training.metrics import peak_memory_gib

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer

COST = "cost.json"


def record_calibration_cost(trainer: "TrustMOPDTrainer", seconds: float) -> None:
    """Beside what the run's training cost, where a trained run is calibrated for a diagnosis."""
    path = trainer.run_dir / COST
    known = read_json(path, what="cost", remedy="Delete it.") if path.is_file() else {}
    trained = known if known.get("training") else {}
    write_json(path, {**_shared(trainer), **trained, "calibration": _device_time(trainer, seconds)})


def record_training_cost(trainer: "TrustMOPDTrainer") -> None:
    """From metrics.jsonl, which a resumed run continues: interruptions add nothing, and steps made twice count once.
    Saving checkpoints is not counted. The last steps may have no line yet, or share the run's summary."""
    seconds, peak, done = 0.0, 0.0, 0
    lines = (trainer.run_dir / "metrics.jsonl").read_text().splitlines()
    for logged in (*map(json.loads, lines), _since_the_last_line(trainer)):
        phases = [value for name, value in logged.items() if name.startswith("seconds/")]
        if phases:  # means over the steps since the line before
            seconds += sum(phases) * (logged["step"] - done)
            peak, done = max(peak, logged["memory/peak_gib"]), logged["step"]
    peak = max(peak, peak_memory_gib(trainer.accelerator.device))  # a line has the mean of its steps' peaks
    training = {"steps": done, **_device_time(trainer, seconds), "peak_memory_gib": peak}
    earlier = _earlier(trainer.run_dir / COST)
    if trainer.args.calibration_path is not None:
        earlier["calibration"] = None
    write_json(trainer.run_dir / COST, {**_shared(trainer), "training": training, **earlier})


def _since_the_last_line(trainer: "TrustMOPDTrainer") -> dict[str, float]:
    waiting = trainer._metrics["train"].items()
    means = {name: sum(v) / len(v) for name, v in waiting if v and name.startswith(("seconds/", "memory/"))}
    return {**means, "step": trainer.state.global_step}


def _shared(trainer: "TrustMOPDTrainer") -> dict[str, Any]:
    gpus = trainer.machine["hardware"]["gpus"]
    return {
        "device": gpus[0] if gpus else f"CPU, {platform.machine()}",
        "devices": trainer.accelerator.num_processes,
        "scored": {"teachers": len(trainer.pool.teachers), "reference": int(REFERENCE in trainer.pool.members)},
    }


def _device_time(trainer: "TrustMOPDTrainer", seconds: float) -> dict[str, float]:
    return {"seconds": seconds, "device_hours": seconds * trainer.accelerator.num_processes / 3600}


def _earlier(path: Path) -> dict[str, Any]:
    """What calibrating in this folder cost, in this run or before it, and what `trustmopd evaluate` added."""
    known = read_json(path, what="cost", remedy="Delete it.") if path.is_file() else {}
    evaluation = {"evaluation": known["evaluation"]} if known.get("evaluation") else {}
    return {"calibration": known.get("calibration"), **evaluation}
