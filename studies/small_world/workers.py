"""Cells side by side, each in a process of its own. Cells that are finished stay."""

import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from threading import RLock, Thread

import torch
from tqdm.auto import tqdm

from studies.small_world.cells import Cell
from studies.small_world.comparison import Comparison
from trustmopd.quickstart.experiment import quiet


def run_cells(comparison: Comparison, cells: Sequence[Cell], jobs: int = 1) -> None:
    """Run the cells that are not there yet, `jobs` at a time."""
    # Sums in two threads differ in the last bit from sums in one: the same seeds give the same numbers at any `jobs`.
    torch.set_num_threads(1)
    quiet()
    comparison.prepare(list(cells))
    todo = [cell for cell in cells if cell.scores(comparison.out) is None]
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with (
        tqdm(total=len(cells), initial=len(cells) - len(todo), desc="cells", unit="cell") as bar,
        ProcessPoolExecutor(jobs, context, initializer=_start_worker) as workers,
    ):
        futures = {workers.submit(comparison.run, cell): cell for cell in todo}
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
