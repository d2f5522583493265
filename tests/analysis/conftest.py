from pathlib import Path

import pytest
import recorded


@pytest.fixture(scope="session")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished trust run; nobody changes it."""
    return recorded.make_run(tmp_path_factory.mktemp("runs") / "trust", scores=recorded.scores_of("trust", 0.44))


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Methods over two seeds on one prompt set, and trust against uniform on another."""
    root = tmp_path_factory.mktemp("study")
    settings = {
        "trust": {},
        "uniform": {"rule": "uniform"},
        "without-mu": {"calibrated": False},
        "response-level": {"granularity": "response"},
        "gamma-3": {"gamma": 3.0},
    }
    for place, (name, config) in enumerate(settings.items()):
        for seed in (0, 1):
            overall = 0.44 - 0.03 * place + 0.01 * seed * (place + 1)
            scores = recorded.scores_of(name, overall)
            run = root / "multicap" / name / f"seed-{seed}"
            recorded.make_run(run, steps=2, seed=seed, scores=scores, **config)
            (run / "recipe.yaml").write_text(f"name: {name}\nprompts: {{path: data/multicap}}\n")
            if name in ("trust", "uniform"):
                run = root / "singlecap" / name / f"seed-{seed}"
                recorded.make_run(run, steps=2, seed=seed, scores=recorded.scores_of(name, overall + 0.02), **config)
                (run / "recipe.yaml").write_text(f"name: {name}\nprompts: {{path: data/singlecap.jsonl}}\n")
    return root
