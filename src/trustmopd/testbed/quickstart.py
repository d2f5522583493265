"""Watch the method work: distil three specialists with trust and with uniform weights, compare, and draw it."""

import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from trustmopd.analysis.page.report import write_report
from trustmopd.analysis.readers.run import open_run
from trustmopd.files import write_json
from trustmopd.runs.layout import SCORES
from trustmopd.testbed.experiment import (
    Scale,
    World,
    evaluate,
    make_trainer,
    reference_scores,
    with_prompts,
    with_recovery,
    write_scores,
)
from trustmopd.testbed.machine import reproducibly
from trustmopd.testbed.reproduce import check_writable, quiet
from trustmopd.training.progress import show_progress

PROMPTS = "multicap"  # most of its prompts need two specialists, so trust can be seen to move within a response
METHODS = ("uniform", "trust")


def more_seeds() -> str:
    """The command that goes on from here, as this shell finds it: `make quickstart` leaves the program in .venv."""
    program = "trustmopd" if shutil.which("trustmopd") else f"{shlex.quote(sys.executable)} -m trustmopd"
    only = " ".join(f"--only {name}" for name in (PROMPTS, *METHODS))
    return f"{program} reproduce testbed --seeds 3 {only}"


def quickstart(out: Path, *, world: World | None = None, scale: Scale | None = None, seed: int = 0) -> dict[str, Any]:
    """Everything into `out`: runs, scores.json, tables, figures, report.html. Returns the rows of scores.json."""
    world, scale = world or World(), scale or Scale()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    check_writable(out)
    quiet()
    # Models this small gain little from a second thread, and wait long for it where the other cores are busy.
    torch.set_num_threads(1)
    began = time.perf_counter()
    with reproducibly():
        references = reference_scores(world, scale, device)
        rows = dict(references)
        for method in METHODS:
            trainer = make_trainer(world, PROMPTS, method, seed, out / method, scale, out / "prompts")
            show_progress(trainer, f"Distilling, {method}")
            trainer.train()
            scores = evaluate(trainer.model, trainer.processing_class, scale, bar=f"Evaluating, {method}")
            write_scores(out / method, method, scores, references, scale)
            rows |= with_recovery({method: scores}, references)
    rows = with_prompts(rows, scale)
    write_json(out / SCORES, rows)
    tqdm.write("Drawing figures and writing the report.")
    note = (
        f"{scale.steps} steps of {scale.batch_size} prompts on the small world that ships with the package (models of "
        "0.87M parameters, specialists made by reinforcement learning with verified rewards); scores on "
        f"{scale.evaluation_prompts} evaluation prompts a domain, none of them a training prompt, one sample at "
        f"temperature 0.6. It took {time.perf_counter() - began:.0f} s. Arithmetic belongs to math, string programs to "
        "code, delimiters to if."
    )
    runs = [open_run(out / method) for method in METHODS]
    title = "Three specialists, one student, no labels"
    more = f"Run three seeds of both: `{more_seeds()}` (without --only, every baseline and ablation)."
    write_report(runs, out, title=title, notes=[note], more_seeds=more)
    return rows
