"""Every statistic again, by a few independent lines over the stored rows."""

import itertools
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pyarrow.parquet as pq
import pytest
import recorded

from trustmopd.report.readers.run import open_run
from trustmopd.report.statistics.summary import summarise_run
from trustmopd.runs.guard import Guard


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [row for file in sorted((run / "allocation").glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def responses_of(run: Path) -> list[list[dict[str, Any]]]:
    return [list(rows) for _, rows in itertools.groupby(rows_of(run), key=lambda row: (row["step"], row["rollout"]))]


def test_displacement_and_scores_are_token_means_with_the_spread_of_responses(trusting: Path) -> None:
    found = summarise_run(open_run(trusting))
    by_group = defaultdict(list)
    for row in rows_of(trusting):
        by_group["+".join(row["capabilities"])].append(row)
    assert list(found.displacement) == ["math", "code", "if", "math+if", "code+if"]
    for group, rows in by_group.items():
        for name in recorded.TEACHERS:
            raw = [row[f"score_{name}"] for row in rows]
            assert found.displacement[group][name] == pytest.approx(mean(raw), rel=1e-6)
            each = [
                mean(row[f"score_{name}"] / recorded.MU[name] for row in response)
                for response in responses_of(trusting)
                if "+".join(response[0]["capabilities"]) == group
            ]
            assert found.scores[group][name].mean == pytest.approx(mean(raw) / recorded.MU[name], rel=1e-6)
            assert found.scores[group][name].sd == pytest.approx(stdev(each), rel=1e-6)
            assert found.scores[group][name].n == len(each)


def test_weights_margins_and_relevant_mass_are_means_over_rollouts(trusting: Path) -> None:
    found = summarise_run(open_run(trusting))
    groups = defaultdict(list)
    for response in responses_of(trusting):
        means = {name: mean(row[f"weight_{name}"] for row in response) for name in recorded.TEACHERS}
        groups["+".join(response[0]["capabilities"])].append(means)
    for group, rollouts in groups.items():
        entry, needs = found.allocation[group], group.split("+")
        assert entry["rollouts"] == len(rollouts)
        for name in recorded.TEACHERS:
            assert entry["weights"][name] == pytest.approx(mean(each[name] for each in rollouts), abs=1e-6)
        assert entry["relevant_mass"] == pytest.approx(
            mean(sum(each[name] for name in needs) for each in rollouts), abs=1e-6
        )
        if len(needs) > 1:
            assert group not in found.margins and "margin" not in entry
            continue
        margins = [each[group] - max(w for name, w in each.items() if name != group) for each in rollouts]
        assert found.margins[group] == pytest.approx(margins, abs=1e-6)
        assert entry["margin"] == pytest.approx(mean(margins), abs=1e-6)
        assert entry["positive_margin"] == pytest.approx(mean(margin > 0 for margin in margins))


def test_what_a_prompt_needs_is_a_set_however_it_was_written(tmp_path: Path) -> None:
    groups = [["math", "if"], ["if", "math"], ["if", "math", "if"], ["math", "math"], ["math"]]
    found = summarise_run(open_run(recorded.make_run(tmp_path, steps=5, rollouts=2, groups=groups)))
    assert {group: entry["rollouts"] for group, entry in found.allocation.items()} == {"math": 4, "math+if": 6}
    mixed = [r for r in responses_of(tmp_path) if set(r[0]["capabilities"]) == {"math", "if"}]
    mass = [mean(row["weight_math"] + row["weight_if"] for row in response) for response in mixed]
    assert found.allocation["math+if"]["relevant_mass"] == pytest.approx(mean(mass), abs=1e-6)


def test_capabilities_that_are_no_teacher_and_names_with_a_plus_count_as_what_they_are(tmp_path: Path) -> None:
    groups = [["c++"], ["c++", "if"], ["reasoning", "if"], ["reasoning", "safety"]]
    run = recorded.make_run(tmp_path / "run", teachers=["c++", "if", "math"], groups=groups)
    found = summarise_run(open_run(run))
    assert {group: entry["needs"] for group, entry in found.allocation.items()} == {
        "'c++'": ["c++"],
        "'c++'+if": ["c++", "if"],
        "if+reasoning": ["if"],
        "reasoning+safety": [],
    }
    assert "relevant_mass" not in found.allocation["reasoning+safety"] and set(found.margins) == {"c++"}
    both = found.allocation["'c++'+if"]
    assert both["relevant_mass"] == pytest.approx(both["weights"]["c++"] + both["weights"]["if"])


def test_the_sharpest_change_is_where_most_weight_changes_hands(trusting: Path) -> None:
    found = summarise_run(open_run(trusting)).sharpest_changes
    best = []
    for response in responses_of(trusting):
        moves = [
            (sum(abs(b[f"weight_{n}"] - a[f"weight_{n}"]) for n in recorded.TEACHERS) / 2, b["position"], b["rollout"])
            for a, b in itertools.pairwise(response)
        ]
        best.append(max(moves))
    best.sort(reverse=True)
    assert [change.moved for change in found] == pytest.approx([moved for moved, _, _ in best[: len(found)]], abs=1e-6)
    assert (found[0].position, found[0].rollout) == best[0][1:]


def test_series_come_from_every_logged_step(trusting: Path) -> None:
    found = summarise_run(open_run(trusting))
    lines = [json.loads(line) for line in (trusting / "metrics.jsonl").read_text().splitlines()]
    assert found.series["loss"] == [line["loss"] for line in lines]
    assert found.series["max_weight"] == [line["agreement/max_weight"] for line in lines]
    assert found.series["effective_teachers"] == [line["agreement/effective_teachers"] for line in lines]
    assert all(warning.startswith("guard") for warning in found.warnings)  # of random models


@pytest.mark.unit
def test_a_teacher_that_leaves_the_band_is_warned_of_and_one_noisy_step_is_not() -> None:
    calm = [{"score/a": 1.0, "score/b": 1.0 if step < 30 else 2.0} for step in range(40)]
    calm[15]["score/a"] = 4.0
    (said,) = Guard().read([{"step": step, **line} for step, line in enumerate(calm)])
    assert (said.metric, said.since) == ("score/b", 30)


@pytest.mark.unit
def test_a_drift_downwards_counts_as_one_upwards() -> None:
    for score, warned in ((0.5, True), (0.0, True), (0.7, False)):
        lines = [{"step": 1, "score/a": 1.0}] * 5 + [{"step": 2, "score/a": score}] * 10
        assert bool(Guard().read(lines)) == warned
