"""IFEval and IFBench: the verdicts of their own checkers, at both levels, strict and loose."""

import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from shared_data import real

from trustmopd.evaluation import Benchmark, Unavailable, get_benchmark
from trustmopd.evaluation.aggregation import score_entries
from trustmopd.evaluation.benchmarks import Questions
from trustmopd.evaluation.entries import Entry
from trustmopd.evaluation.evaluate import evaluate_checkpoint
from trustmopd.evaluation.graders.instructions import loose_variants
from trustmopd.evaluation.read_graded import collect
from trustmopd.evaluation.sampling import Response, Sampling
from trustmopd.recipe import TeacherSource

pytestmark = pytest.mark.unit

OWN = [
    ("punctuation:no_comma", {}, "No commas here.", "One, two."),
    ("change_case:english_lowercase", {}, "all of this is small english text.", "All of this is English text."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* one\n* two", "* one\n* two\n* three"),
    ("length_constraints:number_words", {"relation": "at least", "num_words": 4}, "one two three four", "one two"),
    (
        "length_constraints:number_sentences",
        {"relation": "less than", "num_sentences": 3},
        "It is late. Go home.",
        "It is late. Go home. Sleep well.",
    ),
    ("keywords:existence", {"keywords": ["fox", "dog"]}, "the fox and the dog", "the fox"),
    ("startend:quotation", {}, '"quoted"', "bare"),
    ("detectable_format:json_format", {}, '{"a": 1}', "a: 1"),
    ("language:response_language", {"language": "de"}, "Das ist ein deutscher Satz.", "This is an English sentence."),
]


def ready(name: str) -> Benchmark:
    try:
        get_benchmark(name).ready()
    except Unavailable as error:
        pytest.skip(str(error))
    return get_benchmark(name)


def lm_eval() -> ModuleType:
    """The library, with the data that it needs."""
    pytest.importorskip("lm_eval")
    ready("ifeval")
    from lm_eval.tasks.ifeval import utils

    return utils


def own_row(*chosen: int) -> dict[str, Any]:
    return {
        "key": 1,
        "id": "1",
        "prompt": "Say something.",
        "instruction_id_list": [OWN[i][0] for i in chosen],
        "kwargs": [{"absent": None, **OWN[i][1]} for i in chosen],
    }


@pytest.mark.parametrize("number", range(len(OWN)))
def test_an_instruction_is_followed_or_it_is_not(number: int) -> None:
    lm_eval()
    ifeval = get_benchmark("ifeval")
    _, _, good, bad = OWN[number]
    assert ifeval.grade(own_row(number), good).score == 1
    assert ifeval.grade(own_row(number), bad).score == 0


def test_the_score_is_prompt_level_strict_and_the_rest_is_in_the_details() -> None:
    lm_eval()
    ifeval = get_benchmark("ifeval")
    row = own_row(0, 2)
    grade = ifeval.grade(row, "Sure, here you are:\n* one\n* two")  # the comma goes with the first line
    assert grade.score == 0
    assert grade.details["instruction_strict"] == [False, True]
    assert (grade.details["prompt_strict"], grade.details["prompt_loose"]) == (False, True)
    assert grade.details["instruction_loose"] == [True, True]
    assert ifeval.grade(row, "").details["instruction_loose"] == [False, False]
    assert ifeval.grade(row, "<think>Well, commas</think>* one\n* two").score == 1


def test_an_instruction_that_no_checker_knows_is_a_reported_error() -> None:
    lm_eval()
    row = {**own_row(0), "instruction_id_list": ["no:such"]}
    grade = get_benchmark("ifeval").grade(row, "text")
    assert grade.score == 0 and "no:such" in grade.details["error"]


def varied_response(number: int, prompt: str) -> str:
    """Responses that follow some instructions and not others."""
    forms = [
        lambda: prompt,
        lambda: prompt.lower() + "\n\n* one point\n* another point\n* a third",
        lambda: prompt.upper().replace(",", ""),
        lambda: f'"{prompt} P.S. That is all."',
        lambda: json.dumps({"answer": prompt}),
        lambda: "<<A Title>>\n\n" + "\n\n***\n\n".join(prompt.split(". ")),
        lambda: "Section 1\n" + prompt + "\n\nSection 2\n*highlighted part* and *another one*\n[name] [address]",
        lambda: "Here you are:\n" + (prompt.replace(",", "") + " ") * 4 + "\nIs there anything else I can help with?",
        lambda: "",
    ]
    return forms[number % len(forms)]()


class Canned:
    """An engine with given responses: what is graded is the thing under test, and not what samples."""

    def __init__(self, responses: dict[str, str]) -> None:
        self.responses = responses

    def sample(self, requests: Any, sampling: Sampling) -> Any:
        for request in requests:
            yield Response(request, self.responses[request.id], 1, False, False, 0.0)


def scores_of(name: str, rows: Any, responses: dict[str, str], out: Path) -> dict[str, Any]:
    """The whole way: sampled, graded, written, read, averaged."""
    method = Entry("canned", TeacherSource(model="canned"), "canned")
    evaluate_checkpoint(method, out, [Questions(get_benchmark(name), rows)], Sampling(), lambda: Canned(responses))
    methods, notes = collect([out])
    assert notes == []
    return score_entries(methods)["canned"]["benchmarks"][name]


def test_all_of_ifeval_scores_as_lm_eval_scores_it(tmp_path: Path) -> None:
    utils = lm_eval()
    rows = get_benchmark("ifeval").load(real("ifeval/input_data.jsonl"))
    assert len(rows) == 541
    responses = {row["id"]: varied_response(i, row["prompt"]) for i, row in enumerate(rows)}
    began = time.monotonic()
    found = scores_of("ifeval", rows, responses, tmp_path)
    assert time.monotonic() - began < 20
    theirs = []
    for row in rows:
        random.seed(0)  # for two of the prompts lm-eval's checkers draw a letter
        theirs.append(utils.process_results(row, [responses[row["id"]]]))
    assert 0.02 < found["score"] < 0.9  # the responses tell something
    for ours, name in (("score", "prompt_level_strict_acc"), ("prompt_loose", "prompt_level_loose_acc")):
        assert found[ours] == pytest.approx(sum(each[name] for each in theirs) / len(rows), abs=1e-12)
    for ours, name in (("instruction_strict", "inst_level_strict_acc"), ("instruction_loose", "inst_level_loose_acc")):
        assert found[ours] == pytest.approx(utils.agg_inst_level_acc([each[name] for each in theirs]), abs=1e-12)


def official(row: Any, response: str, evaluation_lib: ModuleType) -> tuple[list[bool], list[bool]]:
    """IFBench's own evaluation, instruction by instruction, because it ends at the first checker that raises."""
    verdicts: tuple[list[bool], list[bool]] = ([], [])
    for name, arguments in zip(row["instruction_id_list"], row["kwargs"], strict=True):
        example = evaluation_lib.InputExample(row["id"], [name], row["prompt"], [dict(arguments)])
        random.seed(0)
        try:
            strict = evaluation_lib.test_instruction_following_strict(example, {row["prompt"]: response})
            loose = evaluation_lib.test_instruction_following_loose(example, {row["prompt"]: response})
            pair = strict.follow_all_instructions, loose.follow_all_instructions
        except Exception:
            pair = False, False
        for level, verdict in zip(verdicts, pair, strict=True):
            level.append(verdict)
    return verdicts


def test_all_of_ifbench_is_graded_as_its_official_package_grades_it(tmp_path: Path) -> None:
    """Runs where a checkout of allenai/IFBench is on PYTHONPATH. Checkers that raise (some do, without NLTK's tagger)
    have passed nothing on either side."""
    pytest.importorskip("ifbench")
    evaluation_lib = pytest.importorskip("evaluation_lib")
    lm_eval()  # and with it NLTK's punkt_tab
    rows = get_benchmark("ifbench").load(real("ifbench/IFBench_test.jsonl"))
    assert len(rows) == 300
    responses = {row["id"]: varied_response(i, row["prompt"]) for i, row in enumerate(rows)}
    found = scores_of("ifbench", rows, responses, tmp_path)
    theirs = [official(row, responses[row["id"]], evaluation_lib) for row in rows]
    assert found["score"] == sum(all(strict) for strict, _ in theirs) / 300
    assert found["prompt_loose"] == sum(all(loose) for _, loose in theirs) / 300
    for level, name in enumerate(("instruction_strict", "instruction_loose")):
        flat = [verdict for each in theirs for verdict in each[level]]
        assert found[name] == pytest.approx(sum(flat) / len(flat))


def test_without_ifbench_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ifbench", None)
    monkeypatch.setattr("trustmopd.evaluation.benchmarks.ifbench.find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="pip install git\\+https://github.com/allenai/IFBench"):
        get_benchmark("ifbench").ready()


def test_without_nltk_data_it_says_what_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    nltk = pytest.importorskip("nltk")
    pytest.importorskip("lm_eval")
    monkeypatch.setattr(nltk.data, "path", [])
    with pytest.raises(Unavailable, match="python -m nltk.downloader punkt_tab"):
        get_benchmark("ifeval").ready()


def test_loose_variants_are_the_eight_of_ifeval() -> None:
    assert set(loose_variants("a *b*\nc\nd")) == {*("a *b*\nc\nd", "a b\nc\nd", "c\nd", "a *b*\nc", "a b\nc", "c")}


@pytest.mark.parametrize(
    ("instruction", "arguments", "response"),
    [
        ("language:response_language", {"language": "de"}, "Ein Satz. Noch one sentence."),
        ("keywords:letter_frequency", {"letter": "#", "let_frequency": 3, "let_relation": "at least"}, "aaa bbb ccc e"),
    ],
)
def test_checkers_that_draw_at_random_say_the_same_each_time(instruction: str, arguments: Any, response: str) -> None:
    lm_eval()
    ifeval = get_benchmark("ifeval")
    row = {**own_row(0), "instruction_id_list": [instruction], "kwargs": [arguments]}
    random.seed(5)
    before = random.getstate()
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: ifeval.grade(row, response).score, range(40)))) == 1
    assert random.getstate() == before
