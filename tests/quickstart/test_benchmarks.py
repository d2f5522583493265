"""The small world's domains as benchmarks: generated prompts, verified answers, scored as any other."""

import json
from pathlib import Path

import pytest
from command import run

from trustmopd.evaluation import get_benchmark
from trustmopd.quickstart import DOMAINS, MIXTURES, parse, prompt_split
from trustmopd.quickstart.benchmarks import BENCHMARKS
from trustmopd.quickstart.shipped import SHIPPED

NAMES = [benchmark.name for benchmark in BENCHMARKS]


@pytest.mark.parametrize("name", NAMES)
def test_right_answers_pass_and_systematic_mistakes_do_not(name: str) -> None:
    benchmark = get_benchmark(name)
    rows = benchmark.load()
    assert len(rows) == len({row["id"] for row in rows}) == 1000 and not rows.malformed
    for row in rows:
        task = parse(row["prompt"])
        assert prompt_split(row["prompt"]) == "evaluation" and task.kind == benchmark.domain
        assert benchmark.grade(row, task.answer()).score == 1
        mistaken = benchmark.grade(row, task.answer(task.capabilities))
        assert (mistaken.score, mistaken.details["understood"]) == (0, True)
        assert not any(mistaken.details["capabilities"].values())
    assert not benchmark.grade(rows[0], "something else").details["understood"]


def test_the_domains_and_their_pairs_are_benchmarks_and_a_limit_takes_the_first_prompts() -> None:
    assert {benchmark.domain for benchmark in BENCHMARKS} == {*DOMAINS, *MIXTURES}
    math = get_benchmark("testbed_math")
    assert math.load(limit=1200)[:5] == math.load(limit=5)


def test_a_shipped_checkpoint_scores_by_the_command_what_its_card_says(tmp_path: Path) -> None:
    card = json.loads((SHIPPED / "card.json").read_text())
    how = ["--max-new-tokens", 24, "--limit", 150, "--batch-size", 150]
    run("evaluate", SHIPPED / "math", "--benchmarks", ",".join(NAMES), *how, "--out", tmp_path)
    row = json.loads((tmp_path / "scores.json").read_text())["math"]
    for facts in row["benchmarks"].values():
        # Three standard deviations of a share of 150.
        assert facts["score"] == pytest.approx(card["scores"]["math"][facts["domain"]], abs=0.125)
        assert facts["understood"] == pytest.approx(card["understood"]["math"][facts["domain"]], abs=0.125)
