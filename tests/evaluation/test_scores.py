"""Scores against the paper's definitions, by hand and by numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trustmopd.evaluation.scores import Answers, score_table, summarise, write_scores
from trustmopd.files import read_json
from trustmopd.statistics import bootstrap_interval, bootstrap_means


def answers(domain: str, *scores: float) -> Answers:
    return Answers(
        domain, {str(i): score for i, score in enumerate(scores)}, {"responses": len(scores), "truncated": 0}
    )


def checkpoint(*scores: tuple[float, ...]) -> dict[str, Answers]:
    """AIME twice, LiveCodeBench once: a domain's benchmarks count alike, and so do domains."""
    names = (("aime25", "math"), ("aime26", "math"), ("lcb_v5", "code"))
    return {name: answers(domain, *each) for (name, domain), each in zip(names, scores, strict=True)}


METHODS: dict[str, Any] = {
    "initial": {0: checkpoint((0, 0.5), (0, 0, 0), (0.2, 0.2))},
    "teacher-math": {0: checkpoint((1, 1), (1, 0, 0.5), (0, 0))},
    "teacher-code": {0: checkpoint((0, 0), (0, 0, 0), (0.8, 0.6))},
    "trust": {
        0: checkpoint((1, 0.5), (0.5, 0, 0.1), (0.6, 0.6)),
        1: checkpoint((1, 1), (0.5, 0.4, 0.3), (0.7, 0.5)),
    },
}


def test_domains_overall_spread_and_recovery_follow_the_papers_definitions() -> None:
    summary = summarise(METHODS)
    initial = (((0.25 + 0) / 2) + 0.2) / 2
    routed = (((1 + 0.5) / 2) + 0.7) / 2
    trust = [(((0.75 + 0.2) / 2) + 0.6) / 2, (((1 + 0.4) / 2) + 0.6) / 2]
    assert summary["initial"]["overall"] == pytest.approx(initial)
    assert summary["initial"]["math"] == pytest.approx(0.125)
    assert summary["routed-teachers"]["overall"] == pytest.approx(routed)
    assert summary["routed-teachers"]["math"] == summary["teacher-math"]["math"]
    row = summary["trust"]
    assert row["overall"] == pytest.approx(np.mean(trust))
    assert row["sd"]["overall"] == pytest.approx(np.std(trust, ddof=1))
    recovered = [(each - initial) / (routed - initial) for each in trust]
    assert row["recovery"] == pytest.approx(np.mean(recovered))
    assert row["sd"]["recovery"] == pytest.approx(np.std(recovered, ddof=1))
    assert (summary["initial"]["recovery"], summary["routed-teachers"]["recovery"]) == pytest.approx((0, 1))
    assert row["difference"]["overall"] == pytest.approx(np.mean(trust) - initial)
    assert row["difference"]["n"] == 2 and "difference" not in summary["initial"]


def test_differences_of_trained_methods_are_paired_by_seed() -> None:
    other = {seed: checkpoint((0.9, 0.4), (0.4, 0, 0), (0.5, 0.5)) for seed in (1, 0)}
    other[1] = checkpoint((1, 1), (0.4, 0.3, 0.2), (0.7, 0.5))
    summary = summarise({**METHODS, "uniform": other}, against="uniform")
    by_seed = [0.5 * ((0.475 - (0.65 + 0.4 / 3) / 2) + 0.1), 0.5 * ((0.7 - (1 + 0.3) / 2) + 0)]
    assert summary["trust"]["difference"]["overall"] == pytest.approx(np.mean(by_seed))
    assert summary["trust"]["difference"]["sd"] == pytest.approx(np.std(by_seed, ddof=1))


def test_intervals_hold_the_score_and_a_shared_shift_has_no_width() -> None:
    rng = np.random.default_rng(0)
    easy = rng.random(200)
    scores = {"initial": easy * 0.5, "trust": easy * 0.5 + 0.25}
    methods = {name: {0: {"ifeval": answers("if", *each)}} for name, each in scores.items()}
    summary = summarise(methods)
    low, high = summary["trust"]["interval"]["overall"]
    assert low < summary["trust"]["overall"] < high and high - low > 0.02
    assert (low, high) == pytest.approx(bootstrap_interval(scores["trust"].tolist()), abs=0.005)
    # Prompts are resampled together: what both methods share does not blur their difference.
    assert summary["trust"]["difference"]["interval"] == pytest.approx([0.25, 0.25])
    assert summary["trust"]["recovery"] is None  # no teachers, no gap


def test_resampled_means_are_those_of_resampled_columns() -> None:
    data = np.arange(12.0).reshape(2, 6) ** 2
    means = bootstrap_means(data.tolist(), draws=20_000, seed=1)
    assert means.shape == (20_000, 2)
    assert means.mean(axis=0) == pytest.approx(data.mean(axis=1), rel=0.02)
    assert means.std(axis=0) == pytest.approx(data.std(axis=1) / np.sqrt(6), rel=0.02)
    assert np.corrcoef(means.T)[0, 1] == pytest.approx(np.corrcoef(data)[0, 1], abs=0.02)


def test_checkpoints_with_other_prompts_are_not_compared() -> None:
    short = {0: checkpoint((0, 0.5), (0, 0), (0.2, 0.2))}
    with pytest.raises(ValueError, match="initial, seed 0 has 3 prompts of aime26 and short, seed 0 2"):
        summarise({**METHODS, "short": short})
    with pytest.raises(ValueError, match="nothing to score"):
        summarise({})


def test_without_every_teacher_there_is_no_routed_row() -> None:
    some = {name: METHODS[name] for name in ("initial", "teacher-math", "trust")}
    summary = summarise(some)
    assert "routed-teachers" not in summary and summary["trust"]["recovery"] is None


def test_scores_are_written_as_json_and_three_tables(tmp_path: Path) -> None:
    path = write_scores(tmp_path, summarise(METHODS))
    rows = read_json(path, what="scores", remedy="")
    assert rows["trust"]["seeds"] == [0, 1]
    table = score_table(rows)
    assert list(table.header) == ["", "aime25", "aime26", "lcb_v5", "math", "code", "overall", "recovery"]
    trust = next(row for row in table.rows if row[0] == "trust")
    assert trust[1] == "87.5 ± 17.7" and " ± " in trust[-1] and "[" in trust[-1]
    assert {file.suffix for file in (tmp_path / "tables").iterdir()} == {".md", ".csv", ".tex"}
