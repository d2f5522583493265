"""The report's sentences: said where the numbers call for them, with those numbers."""

import json
import re
from pathlib import Path
from statistics import mean, stdev

import pytest
import recorded

from trustmopd.report.page.story import story
from trustmopd.report.readers.run import Run
from trustmopd.report.statistics.summary import summarise_run


def told(*paths: Path) -> str:
    return " ".join(story(recorded.compared(*paths)))


def test_recovery_of_trust_and_uniform_is_a_mean_over_seeds(study: Path) -> None:
    said = told(study / "multicap")
    shares = {}
    for method in ("trust", "uniform"):
        rows = [json.loads(p.read_text()) for p in (study / "multicap" / method).glob("*/evaluation/scores.json")]
        shares[method] = [(row[method]["overall"] - 0.2) / 0.3 for row in rows]
    first = said.split(".")[0]
    expected = [f"{of(shares[method]):.0%}" for method in ("trust", "uniform") for of in (mean, stdev)]
    assert [number for number in re.findall(r"\d+%", first) if number != "95%"][:2] == expected[:2]
    assert [each in first for each in expected] == [True] * 4


def test_a_run_that_stopped_is_told_of_first(tmp_path: Path) -> None:
    half = recorded.make_run(tmp_path / "half", steps=1, max_steps=4, seed=1, scores=recorded.scores_of("half", 0.22))
    alone = told(half)
    assert f"{half} at step 1 of 4" in alone
    recorded.make_run(tmp_path / "whole", scores=recorded.scores_of("whole", 0.44))
    said = told(tmp_path)
    assert f"{half} at step 1 of 4" in said and str(tmp_path / "whole") not in said
    assert "80%" in said


def test_without_scores_nothing_is_claimed(tmp_path: Path) -> None:
    said = told(recorded.make_run(tmp_path, steps=2))
    assert "no scores" in said and "recovered" not in said


@pytest.mark.parametrize(
    "references", [{"initial": 0.2, "teacher-proof": 0.5}, {"teacher-math": 0.5}, {"initial": 0.2, "teacher-math": 0.2}]
)
def test_scores_without_a_recovery_are_told_as_they_are(tmp_path: Path, references: dict[str, float]) -> None:
    for rule, overall in (("uniform", 0.15), ("trust", 0.13)):
        rows = recorded.rows_of({name: {"math": score} for name, score in {**references, rule: overall}.items()})
        recorded.make_run(tmp_path / rule, rule=rule, scores=rows)
    said = told(tmp_path)
    assert re.search(r"13\.0% \(95% interval 13\.0% to 13\.0%; 2 prompts\).* 15\.0%", said)
    assert "recovered" not in said and "not known" in said


def test_a_loss_that_still_moves_is_said_and_one_that_has_settled_is_not(tmp_path: Path) -> None:
    for last, said in ((0.02, False), (0.3, True)):
        lines = [{"loss": 0.02 + 1e-4 * (step % 2) + (last - 0.02) * step / 40} for step in range(40)]
        run = with_metrics(tmp_path / str(last), lines)
        assert any("loss still moved" in each for each in summarise_run(Run(run)).warnings) == said


def with_metrics(folder: Path, metrics: list[dict[str, float]]) -> Path:
    """A run whose lines have these metrics."""
    run = recorded.make_run(folder, steps=len(metrics))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    changed = [line | given for line, given in zip(lines, metrics, strict=True)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
    return run


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


def test_the_report_repeats_what_the_guard_said(tmp_path: Path) -> None:
    sick = {"completions/clipped_ratio": 0.3, "candidates/student_mass": 0.92}
    warnings = summarise_run(Run(with_metrics(tmp_path, [sick] * 12))).warnings
    named = {name for each in warnings for name in ("#clipped", "#mass", "#entropy") if name in each}
    assert named == {"#clipped", "#mass"}
