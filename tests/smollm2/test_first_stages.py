"""From the weights to three scored specialists through the command line, with a small model in place of the GGUF's."""

import json
from pathlib import Path

import pytest
import tiny

from trustmopd.smollm2 import stages

SPECIALISTS = [
    f"{section}.{change}"
    for section in ("specialist", "specialist_math")
    for change in (
        *("max_steps=2", "prompts_per_step=2", "generations=2", "micro_batches=2", "max_new_tokens=4", "pool=20"),
        "save_every=1",
    )
]


def small_instruct(gguf: Path):
    model = tiny.model(0)
    model.config.max_position_embeddings = 2048
    return model, tiny.tokenizer()


@pytest.mark.slow
def test_stages_make_the_base_the_specialists_and_their_scores(run, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "load_instruct", small_instruct)
    monkeypatch.setattr(stages, "find_gguf", lambda path: path)
    out = tmp_path / "study"
    for arguments in (
        ("--stage", "instruct"),
        ("max_new_tokens=200", "--stage", "base"),  # the solutions that it is shown
        *(("--stage", "specialists", "--only", domain) for domain in ("math", "code", "if")),
        ("--stage", "scores", "--stage", "results"),
    ):
        result = run(out, *SPECIALISTS, *arguments)
        assert result.exit_code == 0, result.output
    scores = json.loads((out / "scores" / "specialists.json").read_text())["scores"]
    assert list(scores) == ["base", "math", "code", "if"]
    assert all(set(row) == {"math", "code", "if", "svamp"} for row in scores.values())
    record = json.loads((out / "specialists" / "math.json").read_text())
    assert (record["steps"], record["faults"]) == (2, [])
    page = (out / "results.md").read_text()
    assert "| instruct |" in page and "| math |" in page
    assert max(file.stat().st_size for file in out.rglob("adapter_model.safetensors")) < 16 * 2**20
