"""The language of the small world: what prompts mean, and what makes an answer right or wrong."""

import random
from itertools import combinations

import pytest

from trustmopd.quickstart import DOMAINS, MIXTURES, parse, verify
from trustmopd.quickstart.prompts import MAX_ANSWER, MAX_PROMPT, draw

pytestmark = pytest.mark.unit

KINDS = (*DOMAINS, *MIXTURES)

RIGHT = {
    "47+38": "85",
    "99+99": "198",
    "70-67": "3",
    "42-42": "0",
    "rev(dab)": "bad",
    "sort(dab)": "abd",
    "dup(dab)": "dabdab",
    "rot(dab)": "abd",
    "drop(dab)": "ab",
    "swap(doge)": "eogd",
    "next(maz)": "nba",
    "rev(sort(dab))": "dba",
    "sort(next(dab))": "bce",
    "drop(rev(dab))": "ad",
    "square:hello": "[hello]",
    "round:hello": "(hello)",
    "curly:hello": "{hello}",
    "angle:hello": "<hello>",
    "quote:hello": '"hello"',
    "star:hello": "*hello*",
    "bar:hello": "|hello|",
    "json:cat": '{"a":"cat"}',
    "rev(47+38)": "58",
    "rot(99+67)": "661",
    "swap(73+80)": "351",
    "dup(47+38)": "8585",
    "square:47+38": "[85]",
    "json:70-67": '{"a":"3"}',
    "star:rev(dab)": "*bad*",
    "bar:dup(sort(cab))": "|abcabc|",
}


@pytest.mark.parametrize(("prompt", "answer"), RIGHT.items())
def test_the_right_answer_and_it_alone_is_right(prompt, answer):
    task = parse(prompt)
    assert task.answer() == answer
    assert verify(task, answer).right
    assert verify(task, answer + " \n").right
    for wrong in ("", " " + answer, answer[:-1], answer + answer[-1], answer + " " + answer, answer[1:], "no"):
        verdict = verify(task, wrong)
        assert not verdict.right, wrong
        assert not verdict.understood and not all(verdict.capabilities.values()), wrong


@pytest.mark.parametrize(
    ("prompt", "answer", "failed"),
    [
        ("47+38", "86", {"math"}),
        ("49+50", "90", {"math"}),  # the mistake's carry is dropped
        ("47+38", "75", {"math"}),
        ("rev(dab)", "bax", {"code"}),
        ("rev(dab)", "dab", {"code"}),
        ("square:hello", "[hello.", {"if"}),
        ("square:hello", "[hello)", {"if"}),
        ("square:hello", "hello", {"if"}),
        ("square:hello", "[hallo]", {"if"}),
        ("json:cat", '{"a":"cat.', {"if"}),
        ("json:cat", '{"a":"cat"', {"if"}),
        ("json:cat", '{"b":"cat"}', {"if"}),
        ("square:47+38", "[86]", {"math"}),
        ("square:47+38", "[85.", {"if"}),
        ("square:47+38", "(85)", {"if"}),
        ("square:47+38", "85", {"if"}),
        ("square:47+38", "[86.", {"math", "if"}),
        ("star:rev(dab)", "*bax*", {"code"}),
        ("star:rev(dab)", "*bad.", {"if"}),
        ("star:rev(dab)", "*bax.", {"code", "if"}),
        ("rev(47+38)", "68", {"math"}),
        ("rev(47+38)", "59", {"math"}),
        ("rev(47+38)", "5x", {"code"}),
        ("rev(47+38)", "6x", {"math", "code"}),
        ("rev(47+38)", "585", {"math", "code"}),
        ("dup(47+38)", "8686", {"math"}),
        ("dup(47+38)", "858x", {"code"}),
        ("dup(47+38)", "8586", {"code"}),
        ("dup(47+38)", "868x", {"math", "code"}),
        ("rot(99+67)", "761", {"math"}),
    ],
)
def test_a_wrong_answer_fails_in_the_capability_it_lacks(prompt, answer, failed):
    verdict = verify(parse(prompt), answer)
    assert not verdict.right
    assert {name for name, shown in verdict.capabilities.items() if not shown} == failed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["train", "evaluation"])
def test_systematic_mistakes_fail_in_exactly_their_capability(kind, split):
    rng = random.Random(0)
    for _ in range(1000):
        task = draw(kind, rng, split)
        assert len(task.prompt) <= MAX_PROMPT and len(task.answer()) <= MAX_ANSWER
        assert "code" not in task.capabilities or not task.run(task.value()).endswith("x")
        for size in range(len(task.capabilities) + 1):
            for mistakes in combinations(task.capabilities, size):
                verdict = verify(task, task.answer(mistakes))
                assert verdict.right == (not mistakes) and verdict.understood
                assert {name for name, shown in verdict.capabilities.items() if not shown} == set(mistakes), task


def test_a_task_knows_its_domain_and_capabilities():
    seen = {
        prompt: (parse(prompt).domain, parse(prompt).capabilities) for prompt in ("47+38", "square:47+38", "rev(dab)")
    }
    assert seen == {
        "47+38": ("math", ("math",)),
        "square:47+38": (None, ("math", "if")),
        "rev(dab)": ("code", ("code",)),
    }
    assert parse("rev(47+38)").kind == "math+code"
    assert parse("47+38").id == parse("47+38").id != parse("38+47").id


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "hello",
        "47*38",
        "flip(dab)",
        "rev(dab",
        "rev(dab))",
        "oval:hello",
        "next(47+38)",
        "sort(47+38)",
        "10-20",
        "x:",
    ],
)
def test_a_prompt_of_another_language_is_refused(prompt):
    with pytest.raises(ValueError, match="small world"):
        parse(prompt)
