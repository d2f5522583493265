"""SIGTERM, as a scheduler sends it before it takes the machine: a real signal to a real process."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny
import yaml

STEPS = 6
#: Seconds in which a run has saved its last step and ended; a step of this recipe is sampled in a tenth of a second.
SOON = 20


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its checkpoints are far apart, and most of a step is sampling."""
    folder, base = tmp_path_factory.mktemp("preempted"), tiny.model(0)
    tiny.prompts(24).to_json(folder / "prompts.jsonl")
    training = {"max_steps": STEPS, "save_steps": 100, "learning_rate": 1e-3, "num_candidates": 16}
    training |= {"global_batch_size": 4, "max_completion_length": 200, "calibration_batches": 1}
    fields = {
        "name": "preempted",
        "student": tiny.save(base, folder / "student"),
        "teachers": {"math": tiny.save(tiny.specialist(base, 1), folder / "math")},
        "prompts": {"path": str(folder / "prompts.jsonl")},
        "training": training,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(fields))
    return folder / "recipe.yaml"


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen]:
    command = [sys.executable, *map(str, arguments)]
    path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PYTHONPATH": path}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def train(*words: object) -> str:
    with started("-m", "trustmopd", "train", *words) as process:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    return said


def wait_until(process: subprocess.Popen, file: Path, text: str) -> None:
    end = time.monotonic() + 200
    while not file.is_file() or text not in file.read_text():
        assert process.poll() is None and time.monotonic() < end, process.stdout.read()
        time.sleep(0.01)


def ended_by_sigterm(process: subprocess.Popen) -> str:
    """What it says after the signal, on one line."""
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=SOON)
    assert process.returncode == 143 and "Traceback" not in said, said
    return " ".join(said.split())


def losses(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.fixture(scope="module")
def undisturbed(recipe: Path) -> Path:
    train(recipe, f"output={recipe.parent / 'whole'}")
    return recipe.parent / "whole"


def test_the_command_that_is_printed_continues_as_if_nothing_had_happened(
    recipe: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with started("-m", "trustmopd", "train", recipe, f"output={run}") as process:
        wait_until(process, run / "metrics.jsonl", '"step": 3,')
        said = ended_by_sigterm(process)
    last = max(losses(run))
    assert 3 <= last < STEPS
    assert [path.parent.name for path in run.glob("checkpoints/*/manifest.json")] == [f"checkpoint-{last}"]
    program, verb, *words = shlex.split(said.partition("Continue with: ")[2].partition("--resume")[0])
    assert (program, verb) == ("trustmopd", "train")
    assert f"checkpoint-{last}, step {last}" in train(*words, "--resume")
    assert losses(run) == losses(undisturbed)


def test_during_calibration_nothing_is_saved_and_the_same_command_starts_again(recipe: Path, tmp_path: Path) -> None:
    words = [recipe, f"output={tmp_path / 'run'}", "training.calibration_batches=1000"]
    with started("-m", "trustmopd", "train", *words) as process:
        assert process.stdout is not None
        for line in process.stdout:  # of the progress bar
            if "Calibrating" in line and "/1000" in line:
                break
        said = ended_by_sigterm(process)
    assert "No checkpoint was saved yet" in said
    assert not list((tmp_path / "run" / "checkpoints").glob("checkpoint-*"))


SCRIPT = """
import sys, time
from transformers import TrainerCallback
from trustmopd import TrustMOPDConfig, TrustMOPDTrainer
from trustmopd.prompts.prompt_set import load_prompts

class Hang(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        open("hangs", "w").close()
        time.sleep(600)

folder = sys.argv[1]
args = TrustMOPDConfig(output_dir="run", max_steps=2, global_batch_size=4, num_candidates=16, max_completion_length=6,
                       calibration_batches=1, use_cpu=True)
TrustMOPDTrainer(f"{folder}/student", {"math": f"{folder}/math"}, args=args, callbacks=[Hang()],
                 train_dataset=load_prompts(f"{folder}/prompts.jsonl")).train()
"""


def test_a_second_sigterm_ends_a_script_at_once(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with started("-c", SCRIPT, recipe.parent) as process:
        wait_until(process, tmp_path / "hangs", "")
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON) == -signal.SIGTERM
    assert not list((tmp_path / "run").glob("checkpoint-*"))
