"""A student, its teachers and small sets, made once."""

import json
from pathlib import Path

import pytest
import small_runs
import tiny


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student, three specialists, small sets of their domains, a recipe, and two trained seeds."""
    folder = tmp_path_factory.mktemp("world")
    base, models = tiny.model(0), small_runs.checkpoints(folder)
    models["base"] = str((folder / "base").rename(folder / "student"))
    for seed in (0, 1):
        for step in (2, 10):
            checkpoint = folder / f"run/seed-{seed}/checkpoints/checkpoint-{step}"
            tiny.save(tiny.specialist(base, 10 * step + seed), checkpoint)
            (checkpoint / "manifest.json").write_text("{}")
        (folder / f"run/seed-{seed}/checkpoints/checkpoint-11").mkdir()  # cut short: no manifest
    for domain in ("math", "code", "if"):
        rows = [{"id": f"{domain}{i}", "prompt": f"{i} + 1 =", "answer": i + 1, "domain": domain} for i in range(4)]
        (folder / f"{domain}_sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    benchmarks = [str(folder / f"{domain}_sums.jsonl") for domain in ("math", "code", "if")]
    evaluation = {"benchmarks": benchmarks, "max_new_tokens": 8, "samples": 2}
    small_runs.recipe(folder, models, evaluation=evaluation, seeds=[0, 1])
    return folder
