"""The report's sentences and advice: said where the numbers call for them, with those numbers."""

import itertools
import json
from pathlib import Path
from statistics import mean, stdev

import pyarrow.parquet as pq
import pytest
import recorded
from recorded import TEACHERS

from trustmopd.analysis.page.story import next_steps, story
from trustmopd.analysis.readers.run import Run, find_runs
from trustmopd.analysis.statistics.comparison import compare
from trustmopd.analysis.statistics.same_experiment import told_apart
from trustmopd.analysis.statistics.summary import summarise_run
from trustmopd.evaluation.scores import write_scores


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
        shares[method] = [(row[method]["overall"] - 0.2) / 0.3 for row in rows]
    assert f"recovered {mean(shares['trust']):.0%} of the gap" in said
    assert f"(± {stdev(shares['trust']):.0%} over 2 seeds; " in said
    assert f"with uniform weights {mean(shares['uniform']):.0%} (± {stdev(shares['uniform']):.0%} over 2 seeds" in said


def test_shares_of_the_weight_are_those_of_the_records(trusting: Path) -> None:
    said, _ = told(trusting)
    found = json.loads(json.dumps(summarise_run(find_runs([trusting])[0]).to_dict()))["allocation"]
    for name in TEACHERS:
        share, ahead = found[name]["weights"][name], found[name]["positive_margin"]
        assert f"'{name}' {share:.0%} (ahead on {ahead:.0%} of rollouts)" in said


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
    assert f"those got {mass:.0%} of the weight (uniform: {fair:.0%})" in said


def test_weights_where_no_label_names_a_teacher_are_a_mean_over_rollouts(tmp_path: Path) -> None:
    said, _ = told(recorded.make_run(tmp_path, groups=[["chess"]] * 5 + [["poetry"]]))
    means = {t: mean(weights[t] for _, weights in rollout_means(tmp_path)) for t in TEACHERS}
    parts = ", ".join(f"'{teacher}' {weight:.0%}" for teacher, weight in means.items())
    assert f"Mean weights over recorded rollouts: {parts}." in said


def test_a_run_that_stopped_is_told_of_first(tmp_path: Path) -> None:
    half = recorded.make_run(tmp_path / "half", steps=1, max_steps=4, seed=1, scores=recorded.scores_of("half", 0.22))
    alone, _ = told(half)
    assert alone.startswith("The run stopped at step 1 of 4: these are the numbers of an unfinished run.")
    assert "trust, step 1 of 4: On prompts that need several specialists" in alone
    recorded.make_run(tmp_path / "whole", scores=recorded.scores_of("whole", 0.44))
    said, _ = told(tmp_path)
    assert said.startswith(f"{half} stopped at step 1 of 4. No unfinished run is averaged with a finished one")
    assert "With trust the student recovered 80% of the gap" in said and "trust, step 1 of 4: On" not in said


def test_without_scores_the_loss_is_told_and_nothing_claimed(tmp_path: Path) -> None:
    said, advice = told(recorded.make_run(tmp_path, steps=20))
    first, last = mean([1, 1 / 2]), mean([1 / 19, 1 / 20])  # a tenth of the steps at each end
    assert f"No scores yet, so whether it worked is not known: under trust the loss went from {first:.3g}" in said
    assert f"to {last:.3g}." in said and "recovered" not in said and "seed" not in advice


@pytest.mark.parametrize(
    ("references", "why"),
    [
        ({"initial": 0.2, "teacher-proof": 0.5}, "not every domain ('math') has a teacher of its name"),
        ({"teacher-math": 0.5}, "the initial student was not scored"),
        ({"initial": 0.2, "teacher-math": 0.2}, "its teachers, each in its own domain, score what it started with"),
    ],
)
def test_scores_without_a_recovery_are_told_with_the_reason(
    tmp_path: Path, references: dict[str, float], why: str
) -> None:
    for rule, overall in (("uniform", 0.15), ("trust", 0.13)):
        rows = recorded.rows_of({name: {"math": score} for name, score in {**references, rule: overall}.items()})
        recorded.make_run(tmp_path / rule, rule=rule, scores=rows)
    said, _ = told(tmp_path)
    assert said.startswith("With trust the student scores 13.0 (2 prompts)") and "with uniform weights 15.0" in said
    assert ("-7.0 on where it started (95% interval -7.0 to -7.0)" in said) == ("initial" in references)
    assert why in said and "No scores yet" not in said


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
    assert (f"{run}: the loss never fell below" in advice) == ("try a lower learning_rate" in advice) == said
    for overall in (0.19, 0.4):  # the initial student has 0.2
        write_scores(run / "evaluation", recorded.scores_of("trust", overall))
        assert ("try a lower learning_rate" in told(run)[1]) == (said and overall < 0.2)


def test_scores_of_an_earlier_checkpoint_are_said_to_be(tmp_path: Path) -> None:
    rows = recorded.scores_of("trust", 0.4)
    rows["trust"]["checkpoint"] = "checkpoint-2"
    run = recorded.make_run(tmp_path, scores=rows)
    for step in (2, 10):
        assert not any("since" in each.what for each in summarise_run(Run(run)).missing)
        (run / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
        (run / "checkpoints" / f"checkpoint-{step}" / "manifest.json").write_text("{}")
    said = [each.what for each in summarise_run(Run(run)).missing]
    assert "The scores are of checkpoint-2, and the run has checkpoint-10 since." in said


@pytest.mark.parametrize(
    ("own", "uniform", "said"),
    [
        (0.44, None, "trustmopd train RECIPE allocation.rule=uniform name=uniform output="),
        (0.40, 0.42, "Trust did not beat uniform"),
        (0.25, 0.22, "The student recovered 17%"),
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
