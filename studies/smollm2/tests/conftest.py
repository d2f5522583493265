"""A study at a tiny size: a small random model for the base, adapters of it for the specialists, made-up problems."""

import json
import shutil
from pathlib import Path

import pytest
import tiny

from studies.smollm2.prompt_sets import write_prompts

SINGLE = [f"categories.{domain}.count=8" for domain in ("math", "code", "if")]
PAIRS = [f"categories.{kind}.count=4" for kind in ("math+if", "code+if", "math+code")]


def _svamp(number: int) -> dict:
    return {
        "ID": f"chal-{number}",
        "Body": f"Person {number} has {number + 10} coins and loses {number + 1}.",
        "Question": "How many are left?",
        "Equation": f"( {number + 10}.0 - {number + 1}.0 )",
        "Answer": 9.0,
    }


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files of made-up problems, by data set. There are enough for the base to be shown 400 and RL to have others."""
    folder = tmp_path_factory.mktemp("data")
    rows = {
        "svamp": [_svamp(number) for number in range(600)],
        "gsm8k": [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(12)],
        "mbpp": [{"task_id": n, "text": f"Return {n}.", "test_list": [f"assert solve() == {n}"]} for n in (11, 12)],
        "ifeval": [
            {"key": 1, "prompt": "Use no commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
        ],
    }
    for name, listed in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in listed))
    return {name: str(folder / f"{name}.jsonl") for name in rows}


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that reads long prompts: its tokens are letters."""
    model = tiny.model(0)
    model.config.max_position_embeddings = 2048
    return Path(tiny.save(model, tmp_path_factory.mktemp("model") / "base"))


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory, base: Path, data: dict[str, str]) -> Path:
    """A folder with base, specialists and prompts, as the first stages leave it."""
    out = tmp_path_factory.mktemp("smollm2")
    shutil.copytree(base, out / "base")
    for seed, domain in enumerate(("math", "code", "if")):
        tiny.adapter(tiny.model(0), out / "adapters" / domain, seed)
    write_prompts(out, data, evaluated=6, changes={"singlecap": SINGLE, "multicap": [*SINGLE, *PAIRS]})
    return out
