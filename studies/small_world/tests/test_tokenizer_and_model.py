"""The tokenizer and the model of the small world load as any other, and are as small as they should be."""

import random

import torch
from transformers import AutoTokenizer

from studies.small_world.models import make_model
from studies.small_world.tokenizer import CHARACTERS, VOCAB_SIZE, make_tokenizer
from trustmopd.quickstart import DOMAINS, MIXTURES
from trustmopd.quickstart.prompts import draw


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


def test_prompts_and_answers_come_back_from_their_tokens():
    tokenizer, rng = make_tokenizer(), random.Random(0)
    for kind in (*DOMAINS, *MIXTURES):
        for _ in range(50):
            task = draw(kind, rng, "train")
            for text in (task.prompt, task.answer(task.capabilities)):
                ids = tokenizer(text)["input_ids"]
                assert len(ids) == len(text) and tokenizer.decode(ids) == text


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
