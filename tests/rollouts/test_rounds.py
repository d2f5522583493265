"""Sampling in rounds on a CPU: the same responses, less work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import GenerationConfig, MistralConfig, MistralForCausalLM, OpenAIGPTConfig, OpenAIGPTLMHeadModel

from trustmopd.rollouts import Params, cpu_sampling, engine_module, transformers_engine
from trustmopd.rollouts.cpu_sampling import ROUND, can_use_rounds

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
    """As transformers alone does it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers_engine, "can_use_rounds", lambda *_: False)
        return engine.sample(PROMPTS, params)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits of the calls that are made in rounds."""
    made: list[int] = []

    def noted(model: Any, **given: Any) -> Any:
        made.append(given["generation_config"].max_new_tokens)
        return cpu_sampling.generate_in_rounds(model, **given)

    monkeypatch.setattr(transformers_engine, "generate_in_rounds", noted)
    return made


def test_rounds_give_the_responses_of_one_call(engine: Any, calls: list[int]) -> None:
    made = engine.sample(PROMPTS, GREEDY)
    assert calls == [LIMIT]
    assert made == at_once(engine, GREEDY)
    assert len({len(each.ids) for each in made}) > 2


def test_an_end_token_in_a_prompt_ends_no_response(engine: Any) -> None:
    prompts = [[engine.ends[0], *prompt] for prompt in PROMPTS]
    made = engine.sample(prompts, GREEDY)
    assert any(len(each.ids) > ROUND for each in made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers_engine, "can_use_rounds", lambda *_: False)
        assert made == engine.sample(prompts, GREEDY)


def test_log_probs_are_sampled_in_one_call(engine: Any, calls: list[int]) -> None:
    made = engine.sample(PROMPTS, replace(GREEDY, logprobs=True))
    assert not calls and all(len(each.logprobs) == len(each.ids) for each in made)


@pytest.mark.parametrize(
    "own",
    [
        {"use_cache": False},
        {"min_new_tokens": 10},
        {"forced_eos_token_id": 2},
        {"cache_implementation": "static"},
        {"begin_suppress_tokens": list(range(4, 20))},
        {"num_beams": 2},
        {"no_repeat_ngram_size": 1},
    ],
    ids=lambda own: next(iter(own)),
)
def test_settings_that_a_checkpoint_has_of_its_own_are_not_used(
    engine: Any, own: dict[str, Any], calls: list[int]
) -> None:
    expected, base = engine.sample(PROMPTS, GREEDY), cpu_sampling.plain(engine.model)
    before, base.generation_config = base.generation_config, GenerationConfig(**own)
    try:
        made, mine = engine.sample(PROMPTS, GREEDY), base.generation_config
        assert at_once(engine, GREEDY) == expected
    finally:
        base.generation_config = before
    assert made == expected and calls == [LIMIT, LIMIT]
    assert all(getattr(mine, name) == value for name, value in own.items())  # the model has it back


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
    counted = replace(GREEDY, options={"min_new_tokens": 12})
    made = engine.sample(PROMPTS, counted)
    assert made == at_once(engine, counted) != engine.sample(PROMPTS, GREEDY)


def test_a_limit_within_one_round_keeps_the_draws_of_one_call(engine: Any, calls: list[int]) -> None:
    short = replace(GREEDY, max_new_tokens=ROUND, temperature=1.0, draws=["a"] * len(PROMPTS))
    assert engine.sample(PROMPTS, short) == at_once(engine, short)
    assert not calls


def test_rounds_are_for_several_rows_of_one_process_with_a_plain_cache(tmp_path: Path) -> None:
    model = tiny.model(0)
    config = GenerationConfig(max_new_tokens=LIMIT)
    assert can_use_rounds(model, 2, config)
    assert not can_use_rounds(model, 1, config)
    assert not can_use_rounds(model, 2, GenerationConfig(max_new_tokens=LIMIT, cache_implementation="static"))
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    window = MistralForCausalLM(MistralConfig(vocab_size=32, num_key_value_heads=1, sliding_window=4, **sizes))
    assert not can_use_rounds(window, 2, config)
    cacheless = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    assert not can_use_rounds(cacheless, 2, config)
    assert not can_use_rounds(model.to("meta"), 2, config)
    model = tiny.model(0)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        assert not can_use_rounds(model, 2, config)  # the other process may need another number of calls
    finally:
        dist.destroy_process_group()


def test_a_round_is_longer_than_the_small_worlds_responses() -> None:
    """Its published figures have the random numbers of one call."""
    from trustmopd.quickstart.prompts import MAX_NEW_TOKENS

    assert cpu_sampling.ROUND >= MAX_NEW_TOKENS
