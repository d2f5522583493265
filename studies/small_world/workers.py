"""Cells side by side, each in a process of its own. Cells that are finished stay."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as finished_of
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.connection import wait
from threading import RLock, Thread

import torch
from tqdm.auto import tqdm

from studies.small_world.cells import Cell
from studies.small_world.comparison import Comparison
from trustmopd.quickstart.experiment import quiet


def run_cells(work: Iterable[tuple[Comparison, Cell]], jobs: int = 1, seconds: float | None = None) -> None:
    """Run the cells that are not there yet, `jobs` at a time, until `seconds` have passed. A cell is taken from `work`
    when a worker is free for it, so later ones may depend on the scores of earlier ones. One that fails does not stop
    the others: its error is raised in the end."""
    quiet()
    deadline = None if seconds is None else time.monotonic() + seconds
    todo = ((comparison, cell) for comparison, cell in work if cell.scores(comparison.out) is None)
    running: dict[Future[None], str] = {}
    failed: list[BaseException] = []
    with tqdm(desc="cells", unit="cell") as bar, workers(jobs) as several:
        try:
            while True:
                for comparison, cell in islice(todo, jobs - len(running)):
                    running[several.submit(comparison.run, cell)] = f"{comparison.out.name}/{cell.name}"
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                done, _ = finished_of(running, left, FIRST_COMPLETED)
                if not done:  # no time, or no work, is left
                    _end(several)
                    break
                for future in done:
                    name = running.pop(future)
                    bar.set_postfix_str(name)
                    bar.update()
                    if isinstance(error := future.exception(), BrokenProcessPool):
                        raise error
                    if error is not None:
                        error.add_note(f"This was cell {name}.")
                        failed.append(error)
        except BrokenProcessPool:
            raise ChildProcessError(
                f"a worker was killed from outside, perhaps because memory ran out ({jobs} at a time). Finished cells "
                "are kept: run the same command again, with fewer --jobs if it recurs."
            ) from None
        except BaseException:
            _end(several)
            raise
    if failed:
        raise failed[0]


def workers(jobs: int) -> ProcessPoolExecutor:
    """Processes of one thread each."""
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    return ProcessPoolExecutor(jobs, context, initializer=_start_worker)


def _end(several: ProcessPoolExecutor) -> None:
    """A cell in progress has nothing to keep."""
    several.shutdown(wait=False, cancel_futures=True)
    for worker in multiprocessing.active_children():
        worker.terminate()


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
