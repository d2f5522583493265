"""SIGTERM to a run of two processes: all save the same step and end; resumed, the run is the undisturbed one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import engines
import pytest
from engines import ENGINES
from processes import free_port, launch, of_a_node, started

from trustmopd.runs import whole_checkpoints

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

STEPS = 6
#: Long responses: most of a step is sampling. No checkpoint is due before the end.
LONG = [f"training.max_steps={STEPS}", "training.save_steps=100", "training.max_completion_length=200"]


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    engines.write_recipes(folder)
    return folder


def wait_for_step(run: Path, step: int, process: subprocess.Popen) -> None:
    until = time.monotonic() + 400
    while not (run / "metrics.jsonl").is_file() or f'"step": {step},' not in (run / "metrics.jsonl").read_text():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)


def steps_of(run: Path) -> list[int]:
    return [int(line["step"]) for line in engines.metrics(run)]


def saved(run: Path) -> list[str]:
    return [path.name for path in whole_checkpoints(run / "checkpoints")]


def test_accelerate_launch_passes_sigterm_on_and_both_processes_save_the_last_step(
    recipes: Path, tmp_path: Path
) -> None:
    config = ["--config_file", str(engines.CONFIGS / "ddp.yaml"), "--mixed_precision", "no"]
    command = [sys.executable, "-m", "accelerate.commands.launch", *config, "--num_processes", "2"]

    def start(run: Path, *options: str) -> subprocess.Popen:
        port = ["--main_process_port", str(free_port())]
        words = ["-m", "trustmopd", "train", str(recipes / "tied.yaml"), f"output={run}", "training.use_cpu=true"]
        with (tmp_path / f"{run.name}.log").open("a") as log:
            whole = [*command, *port, *words, *LONG, *options]
            return subprocess.Popen(whole, env=of_a_node("lo"), stdout=log, stderr=subprocess.STDOUT)

    undisturbed, run = start(tmp_path / "whole"), tmp_path / "run"
    assert undisturbed.wait(400) == 0
    launcher = start(run)
    wait_for_step(run, 3, launcher)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(60) == 1  # the launcher's own status
    said = (tmp_path / "run.log").read_text()
    assert "Continue under the same launcher with: trustmopd train" in said and "--resume" in said
    last = steps_of(run)[-1]
    assert 3 <= last < STEPS and saved(run) == [f"checkpoint-{last}"]
    assert start(run, "--resume").wait(400) == 0
    assert engines.losses(run) == engines.losses(tmp_path / "whole")


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_one_process_that_is_asked_to_end_takes_the_others_with_it(name: str, recipes: Path, tmp_path: Path) -> None:
    settings, whole, run = ENGINES[name].settings, tmp_path / "whole", tmp_path / "run"
    arguments = [engines.__file__, "sampled", str(recipes / "tied.yaml")]
    launch([*arguments, str(whole), *LONG], processes=2, logs=tmp_path, settings=settings)
    with started([*arguments, str(run), *LONG], processes=2, logs=tmp_path, settings=settings) as running:
        wait_for_step(run, 3, running[1])
        os.kill(running[1].pid, signal.SIGTERM)
        assert [process.wait(60) for process in running] == [143, 143]
    last = steps_of(run)[-1]
    assert 3 <= last < STEPS and saved(run) == [f"checkpoint-{last}"]
    launch([*arguments, str(run), *LONG, "--resume"], processes=2, logs=tmp_path, settings=settings)
    assert engines.losses(run) == engines.losses(whole)
