"""Sampling in rounds on a CPU: the same responses, less work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import GenerationConfig, MistralConfig, MistralForCausalLM

from trustmopd.engines import Params, engine_module, rounds
from trustmopd.engines.rounds import ROUND, rounds_help

LIMIT = 2 * ROUND + 6
PROMPTS = [[3, 4, 5, 6, 7, 8], [8, 9], [10, 11, 12], [13], [14, 15, 16, 17], [18, 19]]
GREEDY = Params(max_new_tokens=LIMIT, temperature=0, repetition_penalty=1.3)  # without it, a small model repeats itself


@pytest.fixture(scope="module", params=["a checkpoint", "an adapter"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Some of its greedy responses end in the first round, some in the second, some never."""
    folder = tmp_path_factory.mktemp("model")
    parts = [(tiny.save(tiny.model(0), folder / "base"), None)]
    if request.param == "an adapter":
        parts.append((str(tiny.adapter(tiny.model(0), folder / "adapter", 1)), None))
    loaded = engine_module("transformers").load(parts, None, batch_size=8)
    loaded.ends = []
    free = [each.ids for each in at_once(loaded, GREEDY)]
    first, second = free[0][10], next(token for token in free[1][ROUND + 5 :] if token not in free[1][: ROUND + 5])
    loaded.ends = [first, second]
    rounds_of = {min(len(each.ids) - 1, LIMIT) // ROUND for each in at_once(loaded, GREEDY)}
    assert {0, 1} <= rounds_of
    return loaded


def at_once(engine: Any, params: Params) -> Any:
    """As transformers alone does it: an option that changes nothing keeps it from rounds."""
    return engine.sample(PROMPTS, replace(params, options={"num_beams": 1}))


def test_rounds_give_the_responses_of_one_call(engine: Any) -> None:
    made = engine.sample(PROMPTS, GREEDY)
    assert made == at_once(engine, GREEDY)
    assert len({len(each.ids) for each in made}) > 2


def test_responses_that_ended_are_not_computed_again(engine: Any) -> None:
    sizes = []
    hook = engine.model.get_output_embeddings().register_forward_hook(lambda _, given, __: sizes.append(len(given[0])))
    made = engine.sample(PROMPTS, GREEDY)
    hook.remove()
    for number in range(-(-len(sizes) // ROUND)):
        live = sum(len(each.ids) > number * ROUND for each in made)
        assert set(sizes[number * ROUND : (number + 1) * ROUND]) == {live}
    assert sizes[-1] < sizes[0]


def test_all_that_end_early_end_the_call(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    generate = engine.model.generate
    monkeypatch.setattr(engine.model, "generate", lambda **given: calls.append(given) or generate(**given))
    monkeypatch.setattr(engine, "ends", list(range(tiny.VOCAB)))
    assert [len(each.ids) for each in engine.sample(PROMPTS, GREEDY)] == [1] * len(PROMPTS)
    assert len(calls) == 1


def test_sampled_responses_can_be_drawn_again(engine: Any) -> None:
    drawn = replace(GREEDY, temperature=1.0, draws=[str(place) for place in range(len(PROMPTS))])
    assert engine.sample(PROMPTS, drawn) == engine.sample(PROMPTS, drawn)
    near_greedy = replace(drawn, temperature=1e-4)
    assert engine.sample(PROMPTS, near_greedy) == engine.sample(PROMPTS, GREEDY)


def test_an_option_that_counts_tokens_counts_those_of_the_response(engine: Any) -> None:
    made = engine.sample(PROMPTS, replace(GREEDY, options={"min_new_tokens": ROUND + 20}))
    assert min(len(each.ids) for each in made) > ROUND + 20


def test_a_limit_within_one_round_keeps_the_draws_of_one_call(engine: Any) -> None:
    short = replace(GREEDY, max_new_tokens=ROUND, temperature=1.0, draws=["a"] * len(PROMPTS))
    assert engine.sample(PROMPTS, short) == at_once(engine, short)


def test_rounds_are_for_several_rows_of_one_process_with_a_plain_cache(tmp_path: Path) -> None:
    model = tiny.model(0)
    config = GenerationConfig(max_new_tokens=LIMIT)
    assert rounds_help(model, 2, config)
    assert not rounds_help(model, 1, config)
    assert not rounds_help(model, 2, GenerationConfig(max_new_tokens=LIMIT, cache_implementation="static"))
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    window = MistralForCausalLM(MistralConfig(vocab_size=32, num_key_value_heads=1, sliding_window=4, **sizes))
    assert not rounds_help(window, 2, config)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        assert not rounds_help(model, 2, config)  # the other process may need another number of calls
    finally:
        dist.destroy_process_group()


def test_a_round_is_longer_than_the_small_worlds_responses() -> None:
    """Its published figures have the random numbers of one call."""
    from trustmopd.testbed.prompts import MAX_NEW_TOKENS

    assert rounds.ROUND >= MAX_NEW_TOKENS
