"""Prompts are measured as they will be rendered, and those over the limit are cut, dropped or refused."""

import logging

import pytest
import tiny
from datasets import Dataset

from trustmopd.prompts.views import PromptView, truncate
from trustmopd.training.prompt_lengths import fit_prompts

pytestmark = pytest.mark.unit


def prompt_lengths(prompts, tokenizer):
    return PromptView("the student", tokenizer, {}).of_all(prompts).lengths


def messages(text, role="user"):
    return [{"role": role, "content": text}]


@pytest.fixture
def long_prompts(family):
    """24 prompts of which rows 3 and 11 are over 40 tokens."""
    rows = family.prompts.to_list()
    rows[3]["prompt"] = messages("START" + "x" * 60 + "END")
    rows[11]["prompt"] = messages("START" + "y" * 30 + "END")
    return Dataset.from_list(rows)


def test_a_prompt_has_the_length_of_its_rendering(family):
    lengths = prompt_lengths(family.prompts, family.tokenizer)
    rendered = family.tokenizer.apply_chat_template(family.prompts["prompt"][:], add_generation_prompt=True)
    assert lengths == [len(ids) for ids in rendered["input_ids"]]
    assert prompt_lengths(Dataset.from_dict({"prompt": ["1+1=", "2"]}), family.tokenizer) == [4, 1]


def test_a_role_that_the_template_refuses_is_named_by_its_row(family):
    strict = "{{ raise_exception('no system turn') if messages[0]['role'] == 'system' }}" + tiny.TEMPLATE
    rows = [messages("a")] * 600 + [messages("Be brief.", "system") + messages("a")]
    with pytest.raises(ValueError, match="row 600 .*no system turn"):
        prompt_lengths(Dataset.from_dict({"prompt": rows}), tiny.tokenizer(template=strict))


@pytest.mark.parametrize(("limit", "side", "kept"), [(None, "left", "abcd"), (2, "left", "cd"), (2, "right", "ab")])
def test_a_long_prompt_loses_its_beginning_or_its_end(limit, side, kept):
    assert "".join(truncate(list("abcd"), limit, side)) == kept
    assert truncate([1, 2], 2, side) == [1, 2]


@pytest.mark.parametrize(("truncation", "kept"), [(None, "END\nassistant: "), ("right", "user: START")])
def test_a_prompt_over_the_limit_is_cut_warned_of_and_counted(build, long_prompts, caplog, truncation, kept):
    settings = {} if truncation is None else {"prompt_truncation": truncation}
    with caplog.at_level(logging.WARNING, logger="trustmopd"):
        trainer = build(prompts=long_prompts, max_prompt_length=40, **settings)
    told = ("2 of 24", "max_prompt_length = 40", "row 3", truncation or "left")
    assert [fact for fact in told if fact not in caplog.text] == []
    ids, _, _ = trainer._tokenize_prompts(long_prompts["prompt"][:])
    lengths = [len(prompt) for prompt in ids]
    assert max(lengths) == lengths[3] == lengths[11] == 40 > lengths[0]
    text = trainer.processing_class.decode(ids[3])
    assert text.endswith(kept) if truncation is None else text.startswith(kept)
    assert trainer.identity.overlong_prompts == 2


def test_prompts_over_the_limit_are_dropped_where_that_is_asked_for(build, long_prompts):
    trainer = build(prompts=long_prompts, max_prompt_length=40, prompt_truncation="drop")
    assert [row["id"] for row in trainer.train_dataset] == [f"p{row}" for row in range(24) if row not in (3, 11)]
    assert trainer.identity.overlong_prompts == 2


@pytest.mark.parametrize(
    ("limit", "truncation", "facts"), [(40, "error", "2 of 24 .*row 3.*prompt_truncation"), (3, "drop", "only 0 ")]
)
def test_prompts_over_the_limit_are_refused_if_asked_for_or_if_none_would_be_left(
    build, long_prompts, limit, truncation, facts
):
    with pytest.raises(ValueError, match=f"max_prompt_length = {limit} ") as refusal:
        build(prompts=long_prompts, max_prompt_length=limit, prompt_truncation=truncation)
    assert refusal.match(facts)


def test_without_a_limit_no_prompt_is_cut(build, long_prompts):
    args = build(max_prompt_length=None).args
    assert fit_prompts(long_prompts, {"": [999] * 24}, args) == (long_prompts, 0)
