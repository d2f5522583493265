"""Watch the method work: distil three specialists with trust and with uniform weights, compare, and draw it."""

import time
from pathlib import Path
from typing import Any

import torch

from trustmopd.files import write_json, write_text
from trustmopd.testbed.allocation import summarise_records
from trustmopd.testbed.experiment import Scale, World, evaluate, make_trainer, reference_scores, with_recovery
from trustmopd.testbed.figures import draw_allocation, draw_scores
from trustmopd.testbed.report import render_report
from trustmopd.testbed.reproduce import quiet
from trustmopd.training.progress import show_progress

PROMPTS = "multicap"  # most of its prompts need two specialists, so trust can be seen to move within a response
METHODS = ("uniform", "trust")


def quickstart(out: Path, *, world: World | None = None, scale: Scale | None = None, seed: int = 0) -> dict[str, Any]:
    """Everything into `out`: runs, scores.json, figures, report.html. Returns the rows of scores.json."""
    world, scale = world or World(), scale or Scale()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    quiet()
    began = time.perf_counter()
    rows = reference_scores(world, scale, device)
    trainers = {method: make_trainer(world, PROMPTS, method, seed, out / method, scale) for method in METHODS}
    trainers["trust"].calibrate()
    for method, trainer in trainers.items():
        show_progress(trainer, f"Distilling, {method}")
        trainer.train()
        rows |= with_recovery({method: evaluate(trainer.model, trainer.processing_class, scale)}, rows)
    allocation = summarise_records(out / "trust" / "allocation")
    write_json(out / "scores.json", dict(rows))
    write_json(out / "allocation.json", allocation)
    figures = [draw_scores(rows, out / "figures"), draw_allocation(allocation, out / "figures")]
    seconds = time.perf_counter() - began
    prompts = {row["id"]: row["prompt"][0]["content"] for row in trainers["trust"].train_dataset}
    write_text(out / "report.html", render_report(rows, allocation, figures, out / "trust", prompts, scale, seconds))
    return rows
