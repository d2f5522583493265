"""Served mode, against a real process over HTTP. NCCL needs GPUs, so the transfer of weights is replaced: the trainer
saves the student, and the server loads it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import requests
from transformers import TrainerCallback
from trl.generation.vllm_client import VLLMClient

from trustmopd.rollouts import seed_of
from trustmopd.rollouts.vllm_server import VLLMServer
from trustmopd.training.step.rollout_gap import MAX

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def serve(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts a server; the settings of a run that asks it."""
    shutil.copytree(world / "tied", tmp_path / "served")
    started = []

    def start(*options: str) -> tuple[subprocess.Popen, dict[str, Any]]:
        port = free_port()
        process = subprocess.Popen(
            [sys.executable, str(HERE / "http_server.py"), str(port), str(tmp_path / "served"), *options]
        )
        started.append(process)
        url = f"http://127.0.0.1:{port}"
        return process, {
            "vllm_mode": "server",
            "vllm_server_base_url": url,
            "vllm_server_timeout": 60.0,
            "vllm_group_port": free_port(),
            "calibrated": False,
        }

    def through_files(self: VLLMServer, metadata: Any, tensors: Any) -> None:
        from safetensors.torch import save_file

        file = tmp_path / "served" / "model.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors}, file, metadata={"format": "pt"})
        self._post(f"{self.base_url}/reload", json={})

    monkeypatch.setattr(VLLMServer, "init_communicator", lambda self, device: None)
    monkeypatch.setattr(VLLMServer, "update_named_params", through_files)
    yield start
    for process in started:
        process.kill()
        process.wait()


def steps_of(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def test_a_server_samples_from_the_student_with_a_seed_for_every_request(
    serve: Any, build: Any, tmp_path: Path
) -> None:
    _, settings = serve()
    build(**settings, max_steps=2).train()
    assert [line[MAX] < 1e-4 for line in steps_of(tmp_path / "run")] == [True, True]
    seeds = requests.get(f"{settings['vllm_server_base_url']}/seeds", timeout=10).json()["seeds"]
    assert len(seeds) == len(set(seeds)) == 16
    assert set(seeds) <= {seed_of([f"42/{step}/{row}"]) for step in range(2) for row in range(32)}


class KillAfter(TrainerCallback):
    def __init__(self, process: subprocess.Popen, steps: int) -> None:
        self.process, self.steps = process, steps

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step == self.steps:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()


def test_a_server_that_dies_ends_the_run_and_a_resume_goes_on(serve: Any, build: Any, tmp_path: Path) -> None:
    process, settings = serve()
    settings |= {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    trainer = build(**settings)
    trainer.add_callback(KillAfter(process, 3))
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=settings["vllm_server_base_url"]):
        trainer.train()
    assert time.monotonic() - began < 60
    assert [each.name for each in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]
    _, other = serve()
    build(**settings | {"vllm_server_base_url": other["vllm_server_base_url"]}).train(resume_from_checkpoint=True)
    assert [line["step"] for line in steps_of(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_server_that_hangs_ends_the_run_within_its_time_limit(serve: Any, build: Any) -> None:
    _, settings = serve("--hang-after", "8")
    trainer = build(**settings, rollout_timeout=4.0)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="rollout_timeout"):
        trainer.train()
    assert trainer.state.global_step == 1 and time.monotonic() - began < 40


@pytest.mark.parametrize(
    ("without", "flag"), [("dev-mode", "VLLM_SERVER_DEV_MODE=1"), ("weight-transfer", "--weight-transfer-config")]
)
def test_a_flag_that_the_server_lacks_is_named(
    without: str, flag: str, serve: Any, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, settings = serve("--without", without)
    monkeypatch.setattr(VLLMServer, "init_communicator", VLLMClient.init_communicator)  # fails before NCCL
    with pytest.raises(ConnectionError, match=flag) as raised:
        build(**settings)
    assert settings["vllm_server_base_url"] in str(raised.value)


def test_servers_and_ports_that_cannot_be_used_are_named(serve: Any, build: Any) -> None:
    _, settings = serve("--mode", "processed_logprobs")
    with pytest.raises(ValueError, match="--logprobs-mode raw_logprobs"):
        build(**settings)
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionError, match=nobody):
        build(**settings | {"vllm_server_base_url": nobody, "vllm_server_timeout": 0.5})
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"vllm_group_port = {port}"):
            build(**settings | {"vllm_group_port": port})
