"""The report's sentences and advice: said where the numbers call for them, with those numbers."""

import itertools
import json
import re
from pathlib import Path
from statistics import mean, stdev

import pyarrow.parquet as pq
import pytest
import recorded
from recorded import TEACHERS

from trustmopd.evaluation.aggregation import write_scores
from trustmopd.report.page.advice import next_steps
from trustmopd.report.page.story import story
from trustmopd.report.readers.run import Run, find_runs
from trustmopd.report.statistics.summary import summarise_run


def told(*paths: Path) -> tuple[str, str]:
    """The story and the advice."""
    comparison = recorded.compared(*paths)
    return " ".join(story(comparison)), " ".join(next_steps(comparison))


def test_recovery_of_trust_and_uniform_is_a_mean_over_seeds(study: Path) -> None:
    said, _ = told(study / "multicap")
    shares = {}
    for method in ("trust", "uniform"):
        rows = [json.loads(p.read_text()) for p in (study / "multicap" / method).glob("*/evaluation/scores.json")]
        shares[method] = [(row[method]["overall"] - 0.2) / 0.3 for row in rows]
    first = said.split(".")[0]
    expected = [f"{of(shares[method]):.0%}" for method in ("trust", "uniform") for of in (mean, stdev)]
    assert [number for number in re.findall(r"\d+%", first) if number != "95%"][:2] == expected[:2]
    assert [each in first for each in expected] == [True] * 4


def test_shares_of_the_weight_are_those_of_the_records(trusting: Path) -> None:
    said, _ = told(trusting)
    found = json.loads(json.dumps(summarise_run(find_runs([trusting])[0]).to_dict()))["allocation"]
    for name in TEACHERS:
        share, ahead = found[name]["weights"][name], found[name]["positive_margin"]
        assert re.search(rf"'{name}' {share:.0%} \(\D*{ahead:.0%}", said)


def rollout_means(run: Path) -> list[tuple[list[str], dict[str, float]]]:
    """What each recorded rollout needed, and its mean weights, from the rows of the files."""
    found = []
    for file in sorted((run / "allocation").iterdir()):
        rows = sorted(pq.read_table(file).to_pylist(), key=lambda row: row["rollout"])
        for _, response in itertools.groupby(rows, key=lambda row: row["rollout"]):
            mine = list(response)
            found.append((mine[0]["capabilities"], {t: mean(r[f"weight_{t}"] for r in mine) for t in TEACHERS}))
    return found


def test_mass_on_mixed_prompts_is_a_mean_over_rollouts(tmp_path: Path) -> None:
    groups = [["math", "if"]] * 6 + [["math", "code", "if"], ["code"]]  # 24 rollouts against 4
    said, _ = told(recorded.make_run(tmp_path, groups=groups))
    mixed = [(needs, weights) for needs, weights in rollout_means(tmp_path) if len(needs) > 1]
    mass = mean(sum(weights[t] for t in needs) for needs, weights in mixed)
    fair = mean(len(needs) / 3 for needs, _ in mixed)
    assert re.search(rf"{mass:.0%}[^.]*uniform: {fair:.0%}", said)


def test_weights_where_no_label_names_a_teacher_are_a_mean_over_rollouts(tmp_path: Path) -> None:
    said, _ = told(recorded.make_run(tmp_path, groups=[["chess"]] * 5 + [["poetry"]]))
    means = {t: mean(weights[t] for _, weights in rollout_means(tmp_path)) for t in TEACHERS}
    parts = ", ".join(f"'{teacher}' {weight:.0%}" for teacher, weight in means.items())
    assert parts in said


def test_a_run_that_stopped_is_told_of_first(tmp_path: Path) -> None:
    half = recorded.make_run(tmp_path / "half", steps=1, max_steps=4, seed=1, scores=recorded.scores_of("half", 0.22))
    alone, _ = told(half)
    assert "step 1 of 4" in alone.split(":")[0] and "trust, step 1 of 4: " in alone
    recorded.make_run(tmp_path / "whole", scores=recorded.scores_of("whole", 0.44))
    said, _ = told(tmp_path)
    assert f"{half} at step 1 of 4" in said and str(tmp_path / "whole") not in said
    assert "80%" in said and "trust, step 1 of 4: " not in said


def test_without_scores_the_loss_is_told_and_nothing_claimed(tmp_path: Path) -> None:
    said, advice = told(recorded.make_run(tmp_path, steps=20))
    first, last = mean([1, 1 / 2]), mean([1 / 19, 1 / 20])  # a tenth of the steps at each end
    assert f"from {first:.3g} to {last:.3g}" in said and "recovered" not in said and "seed" not in advice


@pytest.mark.parametrize(
    ("references", "why"),
    [
        ({"initial": 0.2, "teacher-proof": 0.5}, "'math'"),
        ({"teacher-math": 0.5}, "initial student"),
        ({"initial": 0.2, "teacher-math": 0.2}, "no higher"),
    ],
)
def test_scores_without_a_recovery_are_told_with_the_reason(
    tmp_path: Path, references: dict[str, float], why: str
) -> None:
    for rule, overall in (("uniform", 0.15), ("trust", 0.13)):
        rows = recorded.rows_of({name: {"math": score} for name, score in {**references, rule: overall}.items()})
        recorded.make_run(tmp_path / rule, rule=rule, scores=rows)
    said, _ = told(tmp_path)
    assert re.search(r"13\.0 \(2 prompts\).* 15\.0", said) and "recovered" not in said
    assert ("-7.0 to -7.0" in said) == ("initial" in references)
    assert why in said


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([0.01] * 6 + [1.0] * 6, True),
        ([0.01, 0.02, 0.015, *[0.03] * 6, 0.041, 0.05, 0.09], True),
        ([0.01, 0.02, 0.015, *[0.03] * 6, 0.039, 0.05, 0.09], False),  # one of the last is not twice the first ones
        ([0.0009, 0.016, 0.004, 0.006, 0.006, 0.008], False),  # a run of six steps: batches differ that much
    ],
)
def test_a_loss_that_rises_calls_for_a_lower_learning_rate(tmp_path: Path, losses: list[float], said: bool) -> None:
    run = recorded.make_run(tmp_path, steps=len(losses))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for loss, line in zip(losses, lines, strict=True):
        line["loss"] = loss
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    advice = told(run)[1]
    assert (str(run) in advice) == ("lower learning_rate" in advice) == said
    for overall in (0.19, 0.4):  # the initial student has 0.2
        write_scores(run / "evaluation", recorded.scores_of("trust", overall))
        assert ("lower learning_rate" in told(run)[1]) == (said and overall < 0.2)


def test_scores_of_an_earlier_checkpoint_are_said_to_be(tmp_path: Path) -> None:
    rows = recorded.scores_of("trust", 0.4)
    rows["trust"]["checkpoint"] = "checkpoint-2"
    run = recorded.make_run(tmp_path, scores=rows)
    for step in (2, 10):
        assert not any("checkpoint-" in each.what for each in summarise_run(Run(run)).missing)
        (run / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
        (run / "checkpoints" / f"checkpoint-{step}" / "manifest.json").write_text("{}")
    (said,) = [each for each in summarise_run(Run(run)).missing if "checkpoint-" in each.what]
    assert re.findall(r"checkpoint-\d+", said.what) == ["checkpoint-2", "checkpoint-10"] and "evaluate" in said.how


@pytest.mark.parametrize(
    ("own", "uniform", "said"),
    [
        (0.44, None, "trustmopd train RECIPE allocation.rule=uniform name=uniform output="),
        (0.40, 0.42, "trustmopd diagnose RECIPE"),
        (0.25, 0.22, "17%"),
        (0.44, 0.30, "'seeds=[1, 2]' output="),
    ],
)
def test_advice_follows_the_scores(tmp_path: Path, own: float, uniform: float | None, said: str) -> None:
    recorded.make_run(tmp_path / "trust", steps=1, scores=recorded.scores_of("trust", own))
    if uniform is not None:
        scores = recorded.scores_of("uniform", uniform)
        recorded.make_run(tmp_path / "uniform", rule="uniform", steps=1, scores=scores)
    _, advice = told(tmp_path)
    assert said in advice
    assert ("diagnose" in advice) == (uniform is not None and own <= uniform)


def test_advice_follows_the_metrics(tmp_path: Path) -> None:
    run = recorded.make_run(tmp_path, steps=2)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line, clipped, mass in zip(lines, (0.1, 0.5), (0.9, 0.94), strict=True):
        line |= {"completions/clipped_ratio": clipped, "candidates/student_mass": mass}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, advice = told(run)
    assert re.search("30%.*max_completion_length", advice) and re.search("92.0%.*num_candidates", advice)
