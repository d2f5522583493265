"""The report's sentences and advice: said where the numbers call for them, with those numbers."""

import json
from pathlib import Path
from statistics import mean

import pytest
import recorded

from trustmopd.analysis.compare import compare
from trustmopd.analysis.identity import told_apart
from trustmopd.analysis.run import find_runs
from trustmopd.analysis.story import next_steps, story
from trustmopd.analysis.summary import summarise_run


def told(*paths: Path) -> tuple[str, str]:
    """The story and the advice."""
    summaries = told_apart([summarise_run(run) for run in find_runs(paths)])
    comparison = compare(summaries)
    return " ".join(story(summaries, comparison)), " ".join(next_steps(summaries, comparison))


def test_recovery_of_trust_and_uniform_is_a_mean_over_seeds(study: Path) -> None:
    said, _ = told(study / "multicap")
    shares = {}
    for method in ("trust", "uniform"):
        rows = [json.loads(p.read_text()) for p in (study / "multicap" / method).glob("*/evaluation/scores.json")]
        shares[method] = mean((row[method]["overall"] - 0.2) / 0.3 for row in rows)
    assert f"recovered {shares['trust']:.0%} of the gap" in said
    assert f"with uniform weights {shares['uniform']:.0%}." in said


def test_shares_of_the_weight_are_those_of_the_records(trusting: Path) -> None:
    said, _ = told(trusting)
    found = json.loads(json.dumps(summarise_run(find_runs([trusting])[0]).to_dict()))["allocation"]
    for name in recorded.TEACHERS:
        share, ahead = found[name]["weights"][name], found[name]["positive_margin"]
        assert f"'{name}' {share:.0%} (ahead on {ahead:.0%} of rollouts)" in said
    mixed = mean(entry["relevant_mass"] for group, entry in found.items() if "+" in group)
    assert f"those got {mixed:.0%} of the weight (uniform: 67%)" in said


def test_without_scores_the_loss_is_told_and_nothing_claimed(tmp_path: Path) -> None:
    said, advice = told(recorded.make_run(tmp_path, steps=20))
    first, last = mean([1, 1 / 2]), mean([1 / 19, 1 / 20])  # a tenth of the steps at each end
    assert f"No scores yet, so whether it worked is not known: under trust the loss went from {first:.3g}" in said
    assert f"to {last:.3g}." in said and "recovered" not in said and "seed" not in advice


@pytest.mark.parametrize(
    ("own", "uniform", "said"),
    [
        (0.44, None, "Train the same recipe with allocation.rule=uniform"),
        (0.40, 0.42, "Trust did not beat uniform"),
        (0.25, 0.22, "The student recovered 17%"),
        (0.44, 0.30, "one seed does not say how much of a difference is chance"),
    ],
)
def test_advice_follows_the_scores(tmp_path: Path, own: float, uniform: float | None, said: str) -> None:
    recorded.make_run(tmp_path / "trust", steps=1, scores=recorded.scores_of("trust", own))
    if uniform is not None:
        scores = recorded.scores_of("uniform", uniform)
        recorded.make_run(tmp_path / "uniform", rule="uniform", steps=1, scores=scores)
    _, advice = told(tmp_path)
    assert said in advice
    assert ("did not beat" in advice) == (uniform is not None and own <= uniform)


def test_advice_follows_the_metrics(tmp_path: Path) -> None:
    run = recorded.make_run(tmp_path, steps=2)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line, clipped, mass in zip(lines, (0.1, 0.5), (0.9, 0.94), strict=True):
        line |= {"completions/clipped_ratio": clipped, "candidates/student_mass": mass}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, advice = told(run)
    assert "30% of responses hit max_completion_length" in advice
    assert "The candidates hold 92.0% of the student's probability" in advice
