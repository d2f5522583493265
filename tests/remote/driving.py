"""Training in processes of its own, with policies on Ray, watched from outside."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import replay
import small_runs
import tiny

from trustmopd.quickstart.experiment import Experiment, Scale
from trustmopd.util.files import write_text

TEACHERS = replay.TEACHERS


def write_recipe(folder: Path, **training: object) -> Path:
    """Small steps, more than any test waits for, with a checkpoint from time to time."""
    given = {"max_steps": 5000, "save_steps": 10, "teacher_placement": "ray", "disable_tqdm": True, **training}
    path = small_runs.recipe(folder, small_runs.checkpoints(folder), given, name="remote")
    tiny.prompts(2000).to_json(folder / "prompts.jsonl")
    return path


def quickstart(folder: Path, steps: int) -> Path:
    """The small world's recipe, as `trustmopd quickstart` trains it, of fewer steps."""
    recipe = Experiment(folder, Scale(steps=steps)).recipe("trust", "multicap", {"rule": "trust"}, 0, folder / "run")
    path = folder / "trust.yaml"
    write_text(path, recipe.to_yaml())
    return path


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "loss" in line]


@dataclass(frozen=True)
class Driver:
    """A running `trustmopd train`."""

    process: subprocess.Popen
    run: Path
    log: Path

    @property
    def losses(self) -> list[float]:
        """Of the lines that are whole: one may be read while it is written, or be left unfinished by a kill."""
        metrics = self.run / "metrics.jsonl"
        whole, _, _ = (metrics.read_text() if metrics.is_file() else "").rpartition("\n")
        return [line["loss"] for line in map(json.loads, whole.splitlines()) if "loss" in line]

    def until(self, steps: int, seconds: float = 240) -> None:
        """Wait for this many steps."""
        wait_for(lambda: len(self.losses) >= steps or self.process.poll() is not None, seconds, self.said)
        assert len(self.losses) >= steps, self.said()

    def ended(self, seconds: float) -> float:
        """Wait for its end; the seconds that it took."""
        began = time.monotonic()
        wait_for(lambda: self.process.poll() is not None, seconds, self.said)
        return time.monotonic() - began

    def said(self) -> str:
        return self.log.read_text()[-3000:]


@contextmanager
def driver(recipe: Path, run: Path, *overrides: str) -> Iterator[Driver]:
    """Killed in the end, if it has not ended, with all that it has started by then."""
    run.mkdir(parents=True, exist_ok=True)
    log = run / "log.txt"
    command = [sys.executable, "-m", "trustmopd", "train", str(recipe), f"output={run}", *overrides]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ})
    try:
        yield Driver(process, run, log)
    finally:
        for each in (*_descendants(process.pid), process):
            each.kill()
        process.wait()


def actors(of: int) -> list[psutil.Process]:
    """The actors that live below a process: the one that started a cluster."""
    return [each for each in _descendants(of) if _name(each).startswith("ray::PolicyActor")]


def wait_for(done: Callable[[], bool], seconds: float, said: Callable[[], str] = lambda: "") -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"not within {seconds:.0f} s. {said()}"
        time.sleep(0.1)


@contextmanager
def all_ended(processes: list[psutil.Process]) -> Iterator[None]:
    """Killed in the end, each by its own number, if they are still there."""
    try:
        yield
    finally:
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def gone(processes: list[psutil.Process]) -> bool:
    """But for the agents of a cluster that was killed: for a minute they try to report that to it, and then end."""
    return not any(_is_running(each) for each in processes if not _name(each).endswith("Agent"))


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""
