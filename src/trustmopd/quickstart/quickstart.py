"""Watch the method work: distil three specialists with trust and with uniform weights, compare, and draw it."""

import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from trustmopd.evaluation.of_recipe import scored
from trustmopd.quickstart.experiment import REFERENCES, Experiment, Scale, quiet, reproducibly
from trustmopd.report.page.report import write_report
from trustmopd.report.readers.run import open_run
from trustmopd.runs import RunDirectory
from trustmopd.runs.layout import INITIAL, ROUTED, TITLES
from trustmopd.util.files import check_writable

PROMPTS = "multicap"  # most of its prompts need two specialists, so trust can be seen to move within a response
METHODS = ("uniform", "trust")
#: The rows that are shown, in this order, as people read them.
STORY = {INITIAL: TITLES[INITIAL], "uniform": "uniform", "trust": "trust", ROUTED: TITLES[ROUTED]}
#: What the wheel does not have.
ELSEWHERE = (
    "The repository has a guide to models of your own (docs/guides/own-models.md) and the whole comparison, every "
    "baseline and ablation over several seeds (python -m studies.small_world --seeds 3)."
)


def more_seeds(out: Path) -> str:
    """The command for the next step, as this shell finds it: `make quickstart` leaves the program in .venv."""
    program = ["trustmopd"] if shutil.which("trustmopd") else [sys.executable, "-m", "trustmopd"]
    recipe = RunDirectory(out / "trust").recipe
    return shlex.join([*program, "train", str(recipe), "seeds=[1, 2]", f"output={out / 'trust-seeds'}"])


def quickstart(out: Path, *, scale: Scale | None = None, seed: int = 0) -> dict[str, Any]:
    """Everything into `out`: runs, evaluation, tables, figures and the report. Returns the rows of scores."""
    check_writable(out)
    quiet()
    # Models this small gain little from a second thread, and wait long for it where the other cores are busy.
    torch.set_num_threads(1)
    began = time.perf_counter()
    experiment = Experiment(out, scale or Scale())
    recipes = {rule: experiment.recipe(rule, PROMPTS, {"rule": rule}, seed, out / rule) for rule in METHODS}
    with reproducibly():
        for row in REFERENCES:  # another release may ship another world
            experiment.forget(row)
        experiment.evaluate_references(recipes[METHODS[0]], REFERENCES)
        for rule, recipe in recipes.items():
            experiment.train(recipe, bar=f"Distilling, {rule}")
            tqdm.write(f"Evaluating, {rule}.")
            experiment.evaluate_student(recipe)
    rows = scored([experiment.evaluation], experiment.evaluation).scores
    tqdm.write("Drawing figures and writing the report.")
    scale = experiment.scale
    note = (
        f"{scale.steps} steps of {scale.batch_size} prompts on the small world that ships with the package (models of "
        "0.87M parameters, specialists made by reinforcement learning with verified rewards); scores on "
        f"{scale.evaluation_prompts} evaluation prompts a domain, none of them a training prompt, one sample at "
        f"temperature 0.6. It took {time.perf_counter() - began:.0f} s. Arithmetic belongs to math, string programs to "
        "code, delimiters to if."
    )
    title = "Three specialists, one student, no labels"
    write_report([open_run(out / rule) for rule in METHODS], out, title=title, notes=[note, ELSEWHERE])
    return rows
