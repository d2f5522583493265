"""The paper's comparison in the small world: every row, both prompt sets, several seeds. Resumable, cell by cell."""

import json
import multiprocessing
import os
import shutil
import signal
import time
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from datetime import UTC, datetime
from multiprocessing.connection import wait
from pathlib import Path
from threading import RLock, Thread

import torch
from tqdm.auto import tqdm

from trustmopd.analysis.readers.token_records import read_records
from trustmopd.analysis.statistics.trust import weights_by_group
from trustmopd.files import write_json
from trustmopd.runs import RunDirectory
from trustmopd.testbed.cells import REFERENCES, Cell, read_references, records
from trustmopd.testbed.experiment import (
    ALIASES,
    METHODS,
    PROMPT_SETS,
    Scale,
    World,
    make_trainer,
    reference_scores,
    run_cell,
)
from trustmopd.testbed.machine import made_by, mixture, reproducibly
from trustmopd.training.diagnosis import diagnose

MOST_SEEDS = 100


def all_cells(seeds: Iterable[int], only: Sequence[str] = ()) -> list[Cell]:
    """Every cell of the comparison. `only` keeps prompt sets and methods by name. Mixed prompts have no one label, so
    there is nothing to route them by."""
    known = (*PROMPT_SETS, *METHODS, *ALIASES)
    for name in only:
        if name not in known:
            raise ValueError(f"--only {name}: no such prompt set or method. Choose from {', '.join(known)}.")
    only = [ALIASES.get(name, name) for name in only]
    sets = [name for name in PROMPT_SETS if name in only] or PROMPT_SETS
    methods = [name for name in METHODS if name in only] or METHODS
    cells = [
        Cell(prompts, method, seed)
        for seed in seeds
        for prompts in sets
        for method in methods
        if not (prompts == "multicap" and method == "routed")
    ]
    if not cells:
        raise ValueError(f"--only {' --only '.join(only)} leaves nothing to run: mixed prompts cannot be routed.")
    return cells


def parse_seeds(text: str) -> list[int]:
    """`5` is the seeds 0 to 4; `0,3,4` is those; `7,` is the seed 7."""
    text = text.strip()
    try:
        seeds = (
            [int(part) for part in text.rstrip(",").split(",")]
            if "," in text
            else list(range(min(int(text), MOST_SEEDS + 1)))
        )
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or max(seeds) >= 2**32 or len(set(seeds)) < len(seeds) or len(seeds) > MOST_SEEDS:
        raise ValueError(
            f"--seeds {text}: give how many (5, at most {MOST_SEEDS}), or different seeds from 0 to 2^32 − 1 (0,3,4). "
            "One seed alone: 7,"
        )
    return seeds


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
    world, scale = world or World(), scale or Scale()
    cells = all_cells(seeds, only)
    # Sums in two threads differ in the last bit from sums in one: the same seeds give the same numbers at any `jobs`.
    torch.set_num_threads(1)
    quiet()
    with reproducibly():
        prepare(out, world, scale)
        for prompts in sorted({cell.prompts for cell in cells}):
            for method in sorted({cell.method for cell in cells if cell.prompts == prompts}):
                _calibration(out, world, prompts, method, scale)
            _diagnosis(out, world, prompts, scale)
    todo = [cell for cell in cells if not (out / "cells" / f"{cell.name}.json").is_file()]
    if todo and (others := mixture({**records(out), "cells to come": made_by()})):
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
        futures = {workers.submit(_run, cell, out, world, scale): cell for cell in todo}
        try:
            for future in as_completed(futures):
                future.result()
                bar.set_postfix_str(futures[future].name)
                bar.update()
        except BrokenProcessPool:
            raise ChildProcessError(
                f"a worker was ended from outside, perhaps for want of memory ({jobs} at a time). Finished cells are "
                "kept: run the same command again, with fewer --jobs if it recurs."
            ) from None
        except BaseException:
            workers.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():  # a cell in progress has nothing to keep
                worker.terminate()
            raise


def check_writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".writable").touch()
        (out / ".writable").unlink()
    except OSError as error:
        raise ValueError(f"cannot write into {out} ({error.strerror}). Choose another folder with --out.") from error


def prepare(out: Path, world: World, scale: Scale) -> None:
    """What all cells share: the scale, the machine, and the rows that need no distillation."""
    settings = {"scale": asdict(scale), "world": world.fingerprint()}
    check_writable(out)
    path = out / REFERENCES
    if path.is_file():
        stored = read_references(out)
        for name, value in settings.items():
            if stored.get(name) != value:
                raise ValueError(
                    f"{out} holds results made with {name} = {stored.get(name)}, not {value}: they would not be "
                    "comparable. Choose another folder with --out."
                )
        return
    from trustmopd.merge import merge_checkpoints

    device = "cuda" if torch.cuda.is_available() else "cpu"
    average = out / "parameter-average"
    shutil.rmtree(average, ignore_errors=True)  # of an interrupted run, perhaps in another world
    merge_checkpoints(list(world.teachers.values()), average)
    write_json(
        path,
        {
            **settings,
            "scores": reference_scores(world, scale, device, average),
            **made_by(),
            "date": datetime.now(UTC).date().isoformat(),
        },
    )


def _calibration(out: Path, world: World, prompts: str, method: str, scale: Scale) -> str | None:
    """mu does not depend on seed, gamma or granularity: measured once for a prompt set and a score."""
    settings = METHODS[method]
    if settings.get("rule", "trust") != "trust" or not settings.get("calibrated", True):
        return None
    folder = out / "calibration" / f"{prompts}-{settings.get('score', 'displacement')}"
    path = RunDirectory(folder).calibration
    if not path.is_file():
        make_trainer(world, prompts, method, 0, folder, scale, out / "prompts").calibrate()
    return str(path)


def _diagnosis(out: Path, world: World, prompts: str, scale: Scale) -> None:
    """The calibrated score matrix before any training, and what it says of the pool."""
    path = out / "diagnosis" / f"{prompts}.json"
    if not path.is_file():
        calibration = _calibration(out, world, prompts, "trust", scale)
        folder = out / "diagnosis"
        trainer = make_trainer(world, prompts, "trust", 0, folder, scale, out / "prompts", calibration_path=calibration)
        write_json(path, diagnose(trainer, scale.diagnosis_rollouts).to_dict())


def _run(cell: Cell, out: Path, world: World, scale: Scale) -> None:
    quiet()
    folder = out / "runs" / cell.name
    began = time.perf_counter()
    with reproducibly():
        scores = run_cell(
            world,
            cell.prompts,
            cell.method,
            cell.seed,
            folder,
            scale,
            out / "prompts",
            references=read_references(out)["scores"],
            calibration_path=_calibration(out, world, cell.prompts, cell.method, scale),
        )
    lines = [json.loads(line) for line in RunDirectory(folder).metrics.read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    write_json(
        out / "cells" / f"{cell.name}.json",
        {
            **asdict(cell),
            "scores": scores,
            "allocation": weights_by_group(read_records(folder)),
            "max_weight": sum(line["agreement/max_weight"] for line in steps) / len(steps),
            "loss": [line["loss"] for line in steps],
            "seconds": time.perf_counter() - began,
            **made_by(),
        },
    )


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides, and says one thing
    torch.set_num_threads(1)
    tqdm.set_lock(RLock())  # its own is a semaphore of the system, of which Python says that an ended worker leaked it
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed can end nobody: its workers would run what is queued, beside those of a restart."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def quiet() -> None:
    """Bars and our own words only: no line of a library for every model loaded."""
    import datasets
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
