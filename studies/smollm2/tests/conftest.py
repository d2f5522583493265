"""A study at a tiny size: a small random model for the base, adapters of it for the specialists, made-up problems."""

import json
from pathlib import Path

import pytest
import tiny
from typer.testing import CliRunner

from trustmopd.cli import app

CHANGES = (
    *("max_prompt_tokens=600", "max_new_tokens=6", "lora.rank=2", "scoring.prompts=6", "scoring.samples=1"),
    "scoring.batch_size=6",
    *("base.svamp=20", "base.renumbered=10", "base.sums=5", "base.gsm8k=5", "base.stories=10", "base.functions=5"),
    *("base.formats=5", "prompts.singlecap=8", "prompts.multicap_single=4", "prompts.multicap_mixed=4"),
    *("distil.steps=2", "distil.batch_size=4", "distil.num_candidates=8", "distil.calibration_batches=1"),
    *("distil.diagnosis_rollouts=4", "distil.seeds=2", "distil.sweep_steps=2", "distil.sweep_count=1"),
    *("public.prompts=2", "public.max_new_tokens=6"),
)


def _svamp(number: int) -> dict:
    return {
        "ID": f"chal-{number}",
        "Body": f"Person {number} has {number + 10} coins and loses {number + 1}.",
        "Question": "How many are left?",
        "Equation": f"( {number + 10}.0 - {number + 1}.0 )",
        "Answer": 9.0,
    }


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    rows = {
        "svamp": [_svamp(number) for number in range(60)],
        "gsm8k": [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(12)],
        "mbpp": [
            {"task_id": n, "text": f"Return {n}.", "test_list": [f"assert solve() == {n}"]} for n in (3, 11, 12, 700)
        ],
        "ifeval": [
            {
                "key": n,
                "prompt": "Write without commas.",
                "instruction_id_list": ["punctuation:no_comma"],
                "kwargs": [{}],
            }
            for n in range(3)
        ],
    }
    found = {}
    for name, listed in rows.items():
        found[name] = folder / f"{name}.jsonl"
        found[name].write_text("".join(json.dumps(row) + "\n" for row in listed))
    return found


@pytest.fixture(scope="session")
def run(files: dict[str, Path]):
    """`trustmopd reproduce smollm2` with the tiny settings and the made-up data."""
    data = [part for name, path in files.items() for part in ("--data", f"{name}={path}")]

    def call(out: Path, *arguments: str):
        return CliRunner().invoke(app, ["reproduce", "smollm2", *CHANGES, *data, "--out", str(out), *arguments])

    return call


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base and three specialists, as the first stages leave it."""
    out = tmp_path_factory.mktemp("study")
    model = tiny.model(0)
    model.config.max_position_embeddings = 2048
    tiny.save(model, out / "base")
    for seed, domain in enumerate(("math", "code", "if")):
        tiny.adapter(model, out / "adapters" / domain, seed)
    return out
