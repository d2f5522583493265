"""Rollouts with a cache of fixed size: the same responses, and one size for a whole run, so that it compiles once."""

import pytest
import tiny


def widths(trainer):
    """Sizes of the static caches that a run made, in order."""
    made = []
    prepare = trainer.model._prepare_static_cache

    def noted(*args, **kwargs):
        cache = prepare(*args, **kwargs)
        made.append(trainer.model._previous_max_cache_length)
        return cache

    trainer.model._prepare_static_cache = noted
    return made


def test_a_static_cache_gives_the_same_responses_has_one_size_and_may_compile(make, tmp_path, steps_of):
    settings = {"allocation": "uniform", "max_steps": 3, "temperature": 0.9}
    make(tmp_path / "dynamic", **settings).train()
    trainer = make(tmp_path / "static", cache_implementation="static", **settings)
    sizes = widths(trainer)
    trainer.train()
    dynamic, static = steps_of(tmp_path / "dynamic"), steps_of(tmp_path / "static")
    assert [step["loss"] for step in static] == pytest.approx([step["loss"] for step in dynamic], rel=1e-4)
    longest = max(len(ids) for ids in trainer._tokenize_prompts(list(trainer.train_dataset["prompt"]))[0])
    assert set(sizes) == {longest + trainer.max_completion_length}
    assert len(sizes) == 3
    assert trainer.generation_config.disable_compile is False


def test_the_size_goes_by_the_limit_where_prompts_are_cut(make, tmp_path):
    trainer = make(
        tmp_path / "run",
        cache_implementation="static",
        allocation="uniform",
        max_prompt_length=3,
        prompt_truncation="left",
        prompts=tiny.prompts(8),
    )
    assert trainer.generation_config.max_cache_len == 3 + trainer.max_completion_length


def test_without_one_nothing_is_compiled(make, tmp_path):
    assert make(tmp_path / "run", allocation="uniform").generation_config.disable_compile is True
