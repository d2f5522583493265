"""Two processes watch what one does: each samples and grades its share, and both know all scores."""

import json
from pathlib import Path

import pytest
import small_runs
import tiny
from processes import launch

pytestmark = [pytest.mark.distributed]


def test_two_processes_share_the_watched_prompts(tmp_path: Path) -> None:
    rows = [row | {"answer": "4", "grader": "contains"} for row in tiny.prompts(24).to_list()]
    (tmp_path / "answered.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out = [{"id": str(n), "prompt": f"{n} + {n}", "answer": ".", "grader": "regex"} for n in range(90, 97)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out))
    watch = {"benchmarks": [str(tmp_path / "sums.jsonl")], "every": 2, "save_best": True}
    training = {"max_steps": 3, "per_device_train_batch_size": 2, "global_batch_size": 4, "watch": watch}
    prompts = {"path": str(tmp_path / "answered.jsonl")}
    recipe = small_runs.recipe(tmp_path, small_runs.checkpoints(tmp_path), training, prompts=prompts)
    launch(["-m", "trustmopd", "train", str(recipe)], processes=2, logs=tmp_path)
    run = tmp_path / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scored = [line for line in lines if "watch/sums" in line]
    assert [line["step"] for line in scored] == [0, 2, 3]
    assert all(line["watch_prompts/sums"] == 7 and line["watch/sums"] > 0 for line in scored)
    assert [line["watch_prompts/rollouts"] for line in lines if "loss" in line] == [4] * 3
    state = json.loads((run / "checkpoints/checkpoint-3/trainer_state.json").read_text())
    best = max((line for line in scored if line["step"]), key=lambda line: line["watch_score"])
    assert state["best_global_step"] == best["step"]
