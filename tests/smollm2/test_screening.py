"""RL asks what the base solves sometimes."""

import json
import random

import pytest
import tiny

from trustmopd.smollm2.gguf_base import save_base
from trustmopd.smollm2.screening import sometimes_solved
from trustmopd.smollm2.settings import MATHEMATICS, Lora, Settings
from trustmopd.smollm2.tasks import Check, Task


def task(name, *lengths):
    """Any response of a random model passes some lengths, and none passes others."""
    return Task(name, "math", "Say something.", tuple(Check("short", {"n": n}) for n in lengths))


@pytest.fixture
def base(tmp_path):
    save_base(tiny.model(0), tiny.tokenizer(), None, tmp_path / "base")
    return tmp_path / "base"


def settings(samples, per_step=1):
    how = MATHEMATICS.model_copy(update={"screen_samples": samples, "prompts_per_step": per_step, "max_new_tokens": 12})
    return Settings(max_prompt_tokens=200, lora=Lora(rank=2), specialist_math=how)


def test_prompts_that_are_always_or_never_solved_are_left_out(base, tmp_path):
    rng = random.Random(0)
    tasks = [task(f"never-{n}", 0) for n in range(3)] + [task(f"some-{n}", rng.choice((3, 4))) for n in range(12)]
    path = tmp_path / "screening.json"
    kept = sometimes_solved("math", base, tasks, settings(6), path)
    passed = json.loads(path.read_text())["passed"]
    assert {name for name, times in passed.items() if 0 < times < 6} == {each.id for each in kept}
    assert not any(each.id.startswith("never") for each in kept)
    assert kept


def test_what_was_measured_is_not_sampled_again(base, tmp_path):
    path = tmp_path / "screening.json"
    path.write_text(json.dumps({"schema_version": 1, "samples": 4, "passed": {"a": 1, "b": 4, "c": 0}}))
    kept = sometimes_solved("math", tmp_path / "none", [task(name, 5) for name in "abc"], settings(4), path)
    assert [each.id for each in kept] == ["a"]
    with pytest.raises(ValueError, match="screen_samples"):
        sometimes_solved("math", tmp_path / "none", [task("a", 5)], settings(4, per_step=2), path)
