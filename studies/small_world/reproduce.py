"""The paper's comparison in the small world: every row, both prompt sets, several seeds. Resumable, cell by cell."""

import multiprocessing
import os
import shutil
import signal
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from datetime import UTC, datetime
from multiprocessing.connection import wait
from pathlib import Path
from threading import RLock, Thread
from typing import Any

import torch
from tqdm.auto import tqdm

from studies.small_world.cells import Cell, all_cells, finished_cells
from trustmopd.quickstart.experiment import FROM_STUDENT, Experiment, Scale, World
from trustmopd.quickstart.machine import made_by, mixture, quiet, reproducibly
from trustmopd.recipe.rules import RULES, TRUST
from trustmopd.report.readers.run import open_run
from trustmopd.runs import RunDirectory, newest_checkpoint
from trustmopd.runs.schemas import write_file
from trustmopd.training.diagnose import diagnose
from trustmopd.training.environment import check_writable
from trustmopd.util.files import read_json, write_json

STUDY = "study.json"
#: Rows of which the pool is judged before training: their calibrated scores are not the same.
DIAGNOSED = {"trust", "trust-from-student"}


def reproduce(
    out: Path,
    seeds: Sequence[int],
    *,
    only: Sequence[str] = (),
    jobs: int = 1,
    world: World | None = None,
    scale: Scale | None = None,
) -> None:
    """Run the cells that are not there yet, `jobs` at a time, each in a process of its own."""
    experiment = Experiment(world or World(), scale or Scale(), out)
    cells = all_cells(seeds, only, experiment.world.methods)
    # Sums in two threads differ in the last bit from sums in one: the same seeds give the same numbers at any `jobs`.
    torch.set_num_threads(1)
    quiet()
    experiment.world.build()
    with reproducibly():
        prepare(experiment)
        for prompts in sorted({cell.prompts for cell in cells}):
            methods = sorted({cell.method for cell in cells if cell.prompts == prompts})
            for method in methods:
                _calibration(experiment, prompts, method)
            for method in sorted(DIAGNOSED & {"trust", *methods}):
                _diagnosis(experiment, prompts, method)
    todo = [cell for cell in cells if cell.scores(out) is None]
    if todo and (others := mixed_machines(out, {"cells to come": made_by()})):
        warnings.warn(
            f"{out} holds results made elsewhere, and new cells would be averaged with them: {others}. To keep them "
            "apart, choose another folder with --out.",
            stacklevel=2,
        )
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with (
        tqdm(total=len(cells), initial=len(cells) - len(todo), desc="cells", unit="cell") as bar,
        ProcessPoolExecutor(jobs, context, initializer=_start_worker) as workers,
    ):
        futures = {workers.submit(run_cell, cell, experiment): cell for cell in todo}
        try:
            for future in as_completed(futures):
                future.result()
                bar.set_postfix_str(futures[future].name)
                bar.update()
        except BrokenProcessPool:
            raise ChildProcessError(
                f"a worker was killed from outside, perhaps because memory ran out ({jobs} at a time). Finished cells "
                "are kept: run the same command again, with fewer --jobs if it recurs."
            ) from None
        except BaseException:
            workers.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():  # a cell in progress has nothing to keep
                worker.terminate()
            raise


def prepare(experiment: Experiment) -> None:
    """What all cells share: the scale, the machine, and the rows that need no distillation."""
    out = experiment.out
    settings = {"scale": asdict(experiment.scale), "world": experiment.world.fingerprint()}
    check_writable(out)
    if (out / STUDY).is_file():
        stored = read_study(out)
        for name, value in settings.items():
            if stored.get(name) != value:
                raise ValueError(
                    f"{out} holds results made with {name} = {stored.get(name)}, not {value}: they would not be "
                    "comparable. Choose another folder with --out."
                )
    else:
        date = datetime.now(UTC).date().isoformat()
        write_json(out / STUDY, {**settings, **made_by(), "date": date})
    recipe = experiment.recipe("references", "singlecap", "trust", 0, out)
    experiment.evaluate_references(recipe, experiment.world.references)


def read_study(out: Path) -> dict[str, Any]:
    return read_json(out / STUDY, what="study", remedy="Choose another folder with --out.")


def mixed_machines(out: Path, more: dict[str, dict[str, Any]] | None = None) -> str | None:
    """Which of the study's results were made on which machine, where these differ."""
    made = {cell.name: made_by(open_run(cell.run(out).path).manifest) for cell in finished_cells(out)}
    return mixture({"the rows without distillation": read_study(out), **made, **(more or {})})


def run_cell(cell: Cell, experiment: Experiment) -> None:
    """Train one student and score it. A student that was trained to its end is not trained again."""
    quiet()
    run = cell.run(experiment.out)
    recipe = experiment.recipe(cell.row, cell.prompts, cell.method, cell.seed, run.path)
    with reproducibly():
        if newest_checkpoint(run.path) is None:
            calibration = _calibration(experiment, cell.prompts, cell.method)
            experiment.train(recipe, calibration_path=calibration)
        if cell.method in DIAGNOSED:
            shutil.copy(_diagnosis(experiment, cell.prompts, cell.method), run.diagnosis)
        experiment.evaluate_student(recipe)


def _calibration(experiment: Experiment, prompts: str, method: str) -> str | None:
    """mu does not depend on seed, gamma or granularity: measured once for a prompt set, a score and its references."""
    settings = experiment.world.methods[method]
    if not RULES[settings.get("rule", TRUST)].scored or not settings.get("calibrated", True):
        return None
    name = f"{prompts}-{settings.get('score', 'displacement')}{_references(method)}"
    run = RunDirectory(experiment.out / "calibration" / name)
    if not run.calibration.is_file():
        experiment.trainer(experiment.recipe("calibration", prompts, method, 0, run.path)).calibrate()
    return str(run.calibration)


def _diagnosis(experiment: Experiment, prompts: str, method: str) -> Path:
    """The calibrated score matrix before any training, and what it says of the pool."""
    run = RunDirectory(experiment.out / "diagnosis" / f"{prompts}{_references(method)}")
    if not run.diagnosis.is_file():
        recipe = experiment.recipe("diagnosis", prompts, method, 0, run.path)
        trainer = experiment.trainer(recipe, calibration_path=_calibration(experiment, prompts, method))
        write_file(run.diagnosis, diagnose(trainer, experiment.scale.diagnosis_rollouts).model_dump())
    return run.diagnosis


def _references(method: str) -> str:
    return "-from-student" if method in FROM_STUDENT else ""


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent alone reacts
    torch.set_num_threads(1)
    tqdm.set_lock(RLock())  # with tqdm's own, Python warns that a worker that was ended leaked a semaphore
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers: they would run on, next to those of a restart."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
