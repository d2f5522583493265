"""Recipes with vLLM from the command line: what a dry run tells and refuses, and a run that is too slow."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import page_commands
import pytest
import small_runs
from typer.testing import CliRunner
from vllm.entrypoints.cli.serve import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from trustmopd.cli import app


@pytest.fixture
def recipe(world: Path, settings: dict[str, Any], tmp_path: Path) -> str:
    models = {"base": "tied", "math": "tied-math", "code": "tied-code"}
    return str(small_runs.recipe(tmp_path, {name: str(world / folder) for name, folder in models.items()}, settings))


def train(recipe: str, *words: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["train", recipe, *words])
    return ended.exit_code, ended.output


def test_a_dry_run_tells_who_samples(recipe: str) -> None:
    asked = {
        (): ("vLLM 0.31.0", "colocated"),
        ("training.use_vllm=false",): ("sampled by transformers",),
        ("training.vllm_mode=server", "training.vllm_server_port=8123"): ("server", ":8123"),
    }
    for words, told in asked.items():
        status, said = train(recipe, *words, "--dry-run")
        assert status == 0 and all(part in " ".join(said.split()) for part in told), said


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vllm_mode", "serve"),
        ("vllm_gpu_memory_utilization", "1.5"),
        ("vllm_tensor_parallel_size", "2"),  # of one process
        ("vllm_enable_sleep_mode", "true"),  # on a CPU
        ("vllm_max_model_length", "4000"),  # of a model with 256 positions
        ("vllm_group_port", "99999"),
        ("vllm_server_port", "99999"),
        ("vllm_server_base_url", "localhost:8000"),
        ("rollout_timeout", "1e12"),
    ],
)
def test_a_dry_run_refuses_what_vllm_would(field: str, value: str, recipe: str) -> None:
    status, said = train(recipe, f"training.{field}={value}", "--dry-run")
    assert status == 1 and field in said


ON_VLLM = ("training.teacher_placement=ray", "training.teacher_engine=vllm", "training.use_vllm=false")


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (("training.teacher_engine=vllm",), "teacher_engine"),
        (("training.teacher_placement=ray", "training.teacher_quantization=fp8"), "teacher_quantization"),
        (("teachers.math.engine=vllm",), "on: resident"),
        (("teachers.math.model=http://127.0.0.1:8000/v1",), "engine: vllm"),
        ((*ON_VLLM, "teachers.math.model=QUANTISED"), "quantised"),
    ],
)
def test_a_dry_run_refuses_teachers_that_vllm_cannot_read(
    words: tuple[str, ...], fact: str, recipe: str, world: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    quantised = shutil.copytree(world / "tied-math", tmp_path / "quantised")
    config = json.loads((quantised / "config.json").read_text())
    given = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    (quantised / "config.json").write_text(json.dumps(config | {"quantization_config": given}))
    status, said = train(recipe, *(word.replace("QUANTISED", str(quantised)) for word in words), "--dry-run")
    assert status == 1 and fact in " ".join(said.split()), said


def test_a_dry_run_with_teachers_on_vllm_passes(recipe: str) -> None:
    pytest.importorskip("ray")
    status, said = train(recipe, *ON_VLLM, "--dry-run")
    assert status == 0 and "vllm" in said, said


def test_the_guide_s_commands_are_those_of_vllm_and_pass_a_dry_run(recipe: str) -> None:
    began = []
    for fence in page_commands.fences("rollouts.md"):
        for words in page_commands.commands(fence.body) if fence.language == "bash" else ():
            if words[0] == "vllm":
                make_arg_parser(FlexibleArgumentParser()).parse_args(words[2:])  # exits where an option is not one
            elif arguments := page_commands.arguments(words):
                verb, _, *rest = arguments
                status, said = train(recipe, *rest, "--dry-run")
                assert verb == "train" and status == 0 and "vLLM" in said, said
            began.append(words[0])
    assert {"vllm", "accelerate"} <= set(began)


def test_a_run_that_is_too_slow_in_its_calibration_can_be_run_again(recipe: str, tmp_path: Path) -> None:
    words = ["train", recipe, "training.max_steps=1"]
    ours = {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    }  # set by TRL for an engine of a test before
    slow = subprocess.run(
        [sys.executable, "-m", "trustmopd", *words, "training.rollout_timeout=0.01"],
        env={name: value for name, value in os.environ.items() if name not in ours},
        capture_output=True,
        text=True,
    )
    assert slow.returncode == 1 and "--resume" in slow.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert not app([*words, "--resume"], standalone_mode=False)  # not by CliRunner, whose stdout vLLM cannot use
    assert (tmp_path / "run" / "metrics.jsonl").exists()
