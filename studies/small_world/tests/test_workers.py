"""Cells in processes of their own: side by side, interrupted, killed."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from studies.small_world.cells import METHODS, Cell, all_cells, finished_cells
from studies.small_world.comparison import Comparison
from studies.small_world.tests.sizes import SMALL
from studies.small_world.workers import run_cells

UNIFORM = ["multicap", "uniform"]


def test_a_worker_killed_from_outside_is_one_message_and_finished_cells_stay(
    finished: Comparison, study: Comparison
) -> None:
    """The first cell to be made again, in another process, has the same scores."""
    lost = Cell(*UNIFORM, 0)
    shutil.rmtree(lost.run(study.out).path)

    def kill_a_worker() -> None:
        while lost.scores(study.out) is None:
            time.sleep(0.05)
        multiprocessing.active_children()[0].kill()

    killer = Thread(target=kill_a_worker, daemon=True)
    killer.start()
    with pytest.raises(ChildProcessError, match="--jobs"):
        run_cells([(study, cell) for cell in all_cells(range(20), METHODS, UNIFORM)], jobs=2)
    killer.join()
    made, before = finished_cells(study.out), finished_cells(finished.out)
    assert {cell: made[cell] for cell in before} == before
    assert len(made) < 20


def test_ctrl_c_keeps_finished_cells_and_says_how_to_go_on(study: Comparison, tmp_path: Path) -> None:
    script = f"""
if __name__ == "__main__":
    from studies.small_world.__main__ import app
    from trustmopd.quickstart.experiment import Scale

    Scale.__init__.__defaults__ = {tuple(asdict(SMALL).values())!r}
    app(["--seeds", "30", "--only", "multicap", "--only", "uniform", "--out", {str(study.out)!r}])
"""
    (tmp_path / "script.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # ignored by what runs in the background
    )
    before, deadline = len(finished_cells(study.out)), time.monotonic() + 200
    while len(finished_cells(study.out)) == before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the parent and its workers
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "the same command" in stdout
    assert "Traceback" not in stderr and "leaked" not in stderr
    assert before < len(finished_cells(study.out)) < 30
