"""Watch the method work: distil three specialists with trust and with uniform weights, compare, and draw it."""

import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from trustmopd.evaluation.aggregation import score_rows, write_scores
from trustmopd.evaluation.read_graded import collect
from trustmopd.quickstart.experiment import REFERENCES, Experiment, Scale, World
from trustmopd.quickstart.machine import quiet, reproducibly
from trustmopd.report.page.report import write_report
from trustmopd.report.readers.run import open_run
from trustmopd.runs.reference_rows import AVERAGE, INITIAL, ROUTED, TITLES
from trustmopd.training.environment import check_writable

PROMPTS = "multicap"  # most of its prompts need two specialists, so trust can be seen to move within a response
METHODS = ("uniform", "trust")
#: The rows that are shown, in this order, as people read them.
STORY = {INITIAL: TITLES[INITIAL], "uniform": "uniform", "trust": "trust", ROUTED: TITLES[ROUTED]}


def more_seeds() -> str:
    """The command for the next step, as this shell finds it: `make quickstart` leaves the program in .venv."""
    program = "trustmopd" if shutil.which("trustmopd") else f"{shlex.quote(sys.executable)} -m trustmopd"
    only = " ".join(f"--only {name}" for name in (PROMPTS, *METHODS))
    return f"{program} reproduce testbed --seeds 3 {only}"


def quickstart(out: Path, *, world: World | None = None, scale: Scale | None = None, seed: int = 0) -> dict[str, Any]:
    """Everything into `out`: runs, evaluation, tables, figures and the report. Returns the rows of scores."""
    experiment = Experiment(world or World(), scale or Scale(), out)
    scale = experiment.scale
    check_writable(out)
    quiet()
    # Models this small gain little from a second thread, and wait long for it where the other cores are busy.
    torch.set_num_threads(1)
    began = time.perf_counter()
    recipes = {method: experiment.recipe(method, PROMPTS, method, seed, out / method) for method in METHODS}
    with reproducibly():
        references = [row for row in REFERENCES if row != AVERAGE]
        for row in references:  # another release may ship another world
            experiment.forget(row)
        experiment.evaluate_references(recipes[METHODS[0]], references)
        for method, recipe in recipes.items():
            experiment.train(recipe, bar=f"Distilling, {method}")
            tqdm.write(f"Evaluating, {method}.")
            experiment.evaluate_student(recipe)
    rows = score_rows(collect([experiment.evaluation])[0])
    write_scores(experiment.evaluation, rows)
    tqdm.write("Drawing figures and writing the report.")
    note = (
        f"{scale.steps} steps of {scale.batch_size} prompts on the small world that ships with the package (models of "
        "0.87M parameters, specialists made by reinforcement learning with verified rewards); scores on "
        f"{scale.evaluation_prompts} evaluation prompts a domain, none of them a training prompt, one sample at "
        f"temperature 0.6. It took {time.perf_counter() - began:.0f} s. Arithmetic belongs to math, string programs to "
        "code, delimiters to if."
    )
    title = "Three specialists, one student, no labels"
    more = f"Run three seeds of both: `{more_seeds()}` (without --only, every baseline and ablation)."
    write_report([open_run(out / method) for method in METHODS], out, title=title, notes=[note], more_seeds=more)
    return rows
