"""A student, its teachers and small sets, made once."""

import json
from pathlib import Path

import pytest
import tiny
import yaml


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student, three specialists, small sets of their domains, a recipe, and two trained seeds."""
    folder = tmp_path_factory.mktemp("world")
    base = tiny.model(0)
    tiny.save(base, folder / "student")
    for seed, name in enumerate(("math", "code", "if"), start=1):
        tiny.save(tiny.specialist(base, seed), folder / name)
    for seed in (0, 1):
        for step in (2, 10):
            checkpoint = folder / f"run/seed-{seed}/checkpoints/checkpoint-{step}"
            tiny.save(tiny.specialist(base, 10 * step + seed), checkpoint)
            (checkpoint / "manifest.json").write_text("{}")
        (folder / f"run/seed-{seed}/checkpoints/checkpoint-11").mkdir()  # cut short: no manifest
    for domain in ("math", "code", "if"):
        rows = [{"id": f"{domain}{i}", "prompt": f"{i} + 1 =", "answer": i + 1, "domain": domain} for i in range(4)]
        (folder / f"{domain}_sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = {
        "name": "tiny",
        "student": str(folder / "student"),
        "teachers": {name: str(folder / name) for name in ("math", "code", "if")},
        "prompts": {"path": "unused.jsonl"},
        "evaluation": {
            "benchmarks": [str(folder / f"{domain}_sums.jsonl") for domain in ("math", "code", "if")],
            "max_new_tokens": 8,
            "samples": 2,
        },
        "seeds": [0, 1],
        "output": str(folder / "run"),
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    return folder
