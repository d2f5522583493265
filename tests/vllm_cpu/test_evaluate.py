"""`trustmopd evaluate --engine vllm`, and by the recipe's own field."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import tiny
import yaml
from command import run
from transformers import CodeGenConfig, CodeGenForCausalLM

from trustmopd.evaluation.journal import GRADED, read_lines


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"id": str(i), "prompt": f"{i} + 1 =", "answer": i + 1} for i in range(6)]
    path = tmp_path_factory.mktemp("sums") / "sums.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def responses(folder: Path) -> dict[str, str]:
    return {entry["id"]: entry["response"] for entry in read_lines(folder / "sums.jsonl", GRADED)[0]}


def test_both_engines_give_the_same_greedy_responses(world: Path, sums: Path, tmp_path: Path) -> None:
    recipe = {
        "name": "engines",
        "student": str(world / "tied"),
        "teachers": {"math": str(world / "tied-math")},
        "prompts": {"path": "unused.jsonl"},
        "output": str(tmp_path / "run"),
        "evaluation": {
            "benchmarks": [str(sums)], "samples": 1, "temperature": 0, "max_new_tokens": 12, "engine": "vllm",
        },
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    run("evaluate", tmp_path / "recipe.yaml", "--only", "initial", "--out", tmp_path / "vllm")
    greedy = ("--temperature", 0, "--max-new-tokens", 12, "--samples", 1, "--batch-size", 1)
    run("evaluate", world / "tied", "--benchmarks", sums, *greedy, "--out", tmp_path / "transformers")
    by_vllm = responses(tmp_path / "vllm" / "initial")
    assert by_vllm == responses(tmp_path / "transformers") and all(by_vllm.values())
    asked = ("evaluate", tmp_path / "recipe.yaml", "--only", "initial", "--out", tmp_path / "vllm")
    said = run(*asked, "--engine", "transformers", "--samples", 2, code=1)
    assert "'vllm'" in said and "'transformers'" in said


def test_an_architecture_that_vllm_lacks_is_named_alone(sums: Path, tmp_path: Path) -> None:
    config = CodeGenConfig(vocab_size=tiny.VOCAB, n_embd=32, n_head=4, n_layer=1, rotary_dim=4, n_positions=128)
    model = tiny.save(CodeGenForCausalLM(config), tmp_path / "codegen")
    said = run("evaluate", model, "--engine", "vllm", "--benchmarks", sums, "--out", tmp_path / "out", code=1)
    assert "CodeGenForCausalLM" in said and model in said and "engine transformers" in said
    assert "LlamaForCausalLM" not in said and "files" not in said and "vllm_model_impl" not in said


WITHOUT_LLAMA = """
import sys
from vllm import ModelRegistry
from trustmopd.cli import app

del ModelRegistry.models["LlamaForCausalLM"]
app(sys.argv[1:])
"""


def test_transformers_code_serves_where_vllm_has_none(world: Path, sums: Path, tmp_path: Path) -> None:
    words = ["evaluate", world / "tied", "--engine", "vllm", "--benchmarks", sums, "--max-new-tokens", 4]
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_LLAMA, *map(str, [*words, "--out", tmp_path])],
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},  # the registry is this process's own
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert len(responses(tmp_path)) == 6


@pytest.mark.parametrize("broken", [True, False], ids=["a broken file", "too little memory"])
def test_files_are_advised_on_only_where_they_cannot_be_read(
    broken: bool, world: Path, sums: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(world / "tied", tmp_path / "model")
    if broken:
        (model / "model.safetensors").write_bytes((world / "tied" / "model.safetensors").read_bytes()[:5000])
    words = ["evaluate", str(model), "--engine", "vllm", "--benchmarks", str(sums), "--out", str(tmp_path / "out")]
    ended = subprocess.run(  # by CliRunner, vLLM fails on a stdout that it cannot use
        [sys.executable, "-m", "trustmopd", *words],
        env={
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # else the reason is in vLLM's log alone
            "VLLM_CPU_KVCACHE_SPACE": "1" if broken else "100000",
        },
        capture_output=True,
        text=True,
    )
    (said,) = (line for line in ended.stderr.splitlines() if line.startswith("error: "))
    assert ended.returncode == 1 and str(model) in said
    assert ("SafetensorError" if broken else "100000.0 GiB") in said
    assert ("files are whole" in said) == broken and ("engine transformers" in said) != broken


def test_what_is_finished_when_the_engine_is_killed_is_kept_and_the_same_command_continues(
    world: Path, tmp_path: Path
) -> None:
    rows = [{"id": str(i), "prompt": f"{i} + 1 =", "answer": i + 1} for i in range(300)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["evaluate", world / "tied", "--engine", "vllm", "--benchmarks", tmp_path / "sums.jsonl"]
    words += ["--temperature", 0, "--max-new-tokens", 200, "--out", tmp_path / "out"]
    journal = tmp_path / "out" / "sums.responses.jsonl"
    process = subprocess.Popen([sys.executable, "-m", "trustmopd", *map(str, words)], stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (journal.exists() and journal.stat().st_size):
        time.sleep(0.01)
    (engine,) = (each for each in psutil.Process(process.pid).children() if "EngineCore" in each.name())
    engine.kill()
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    (line,) = (each for each in said.splitlines() if each.startswith("error: "))
    assert process.returncode == 1 and "EngineDeadError" in line and "Traceback" not in said
    finished = journal.read_text().splitlines()
    assert 0 < len(finished) < len(rows)
    run(*words)
    assert journal.read_text().splitlines()[: len(finished)] == finished
    assert len(responses(tmp_path / "out")) == len(rows)
