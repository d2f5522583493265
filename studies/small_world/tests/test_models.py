"""The tokenizer, the model and the training answers of the small world."""

import random
from collections import Counter

import pytest
import torch
from transformers import AutoTokenizer

from studies.small_world.models import CHARACTERS, VOCAB_SIZE, make_model, make_tokenizer
from studies.small_world.supervised import draw_mistakes
from trustmopd.quickstart import parse


def test_every_printable_character_is_one_token_and_comes_back(tmp_path):
    made = make_tokenizer()
    made.save_pretrained(tmp_path)
    for tokenizer in (made, AutoTokenizer.from_pretrained(tmp_path)):
        text = "".join(CHARACTERS)
        ids = tokenizer(text)["input_ids"]
        assert len(tokenizer) == VOCAB_SIZE and len(ids) == len(set(ids)) == len(text) == 95
        assert tokenizer.decode(ids) == text
        assert tokenizer("é\n")["input_ids"] == [tokenizer.unk_token_id] * 2
        assert tokenizer.padding_side == "left"


def test_a_prompt_is_framed_by_two_tokens_and_an_answer_ends_in_eos():
    tokenizer = make_tokenizer()
    user, answer = {"role": "user", "content": "47+38"}, {"role": "assistant", "content": "85"}
    prompt = tokenizer.apply_chat_template([user], add_generation_prompt=True, return_dict=True)["input_ids"]
    whole = tokenizer.apply_chat_template([user, answer], return_dict=True)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(prompt) == ["<user>", *"47+38", "<assistant>"]
    assert whole == [*prompt, *tokenizer("85")["input_ids"], tokenizer.eos_token_id]
    assert tokenizer.decode(whole[len(prompt) :], skip_special_tokens=True) == "85"


def test_the_model_is_small_tied_and_float32():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    model = make_model(0)
    assert torch.equal(torch.rand(1), expected)  # the caller's random state is untouched
    assert sum(parameter.numel() for parameter in model.parameters()) == 866_048
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(make_model(0).lm_head.weight, model.lm_head.weight)
    assert not torch.equal(make_model(1).lm_head.weight, model.lm_head.weight)


def test_mistakes_are_drawn_for_each_capability_on_its_own():
    rng, task = random.Random(0), parse("square:47+38")
    drawn = Counter(draw_mistakes(task, rng, 0.6) for _ in range(20_000))
    assert set(drawn) == {frozenset(), frozenset({"math"}), frozenset({"if"}), frozenset({"math", "if"})}
    assert drawn[frozenset({"math", "if"})] / 20_000 == pytest.approx(0.36, abs=0.015)
    assert drawn[frozenset()] / 20_000 == pytest.approx(0.16, abs=0.015)
