"""`trustmopd evaluate --engine vllm`, and by the recipe's own field."""

import json
from pathlib import Path

import pytest
import yaml
from evaluated import run

from trustmopd.evaluation.journal import GRADED, read_entries


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"id": str(i), "prompt": f"{i} + 1 =", "answer": i + 1} for i in range(6)]
    path = tmp_path_factory.mktemp("sums") / "sums.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def responses(folder: Path) -> dict[str, str]:
    return {entry["id"]: entry["response"] for entry in read_entries(folder / "sums.jsonl", GRADED)[0]}


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
