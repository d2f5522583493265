"""What is drawn is what was stored: heights, places and lengths of the marks themselves."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import recorded

from trustmopd.analysis import drawing
from trustmopd.analysis.compare import compare
from trustmopd.analysis.figures import draw_all
from trustmopd.analysis.run import find_runs
from trustmopd.analysis.summary import Summary, summarise_run

ALL = {
    "scores", "allocation", "margins", "displacement", "ablations", "gamma", "transfer", "weights", "training",
    "changes", "cost",
}  # fmt: skip


@pytest.fixture(scope="module")
def drawn(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], list[Summary]]]:
    """Every figure of a study, kept open: name → its axes."""
    folder, kept = tmp_path_factory.mktemp("figures"), []
    summaries = [summarise_run(run) for run in find_runs([study])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing.plt, "close", kept.append)
        pictures = draw_all(summaries, compare(summaries), folder)
    for picture in pictures:
        for suffix in (".png", ".svg"):
            assert picture.path.with_name(picture.path.name + suffix).stat().st_size > 2000
    yield {picture.path.name: figure.axes for picture, figure in zip(pictures, kept, strict=True)}, summaries
    for figure in kept:
        drawing.plt.close(figure)


@pytest.fixture(scope="module")
def captions(study: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a study whose alphabetically first method is not trust."""
    summaries = [summarise_run(run) for run in find_runs([study / "multicap"])]
    pictures = draw_all(summaries, compare(summaries), tmp_path_factory.mktemp("captions"))
    return {picture.path.name: picture.caption for picture in pictures}


@pytest.mark.parametrize("name", ["allocation", "margins", "displacement", "weights", "changes"])
def test_a_figure_of_one_run_shows_the_trusting_one_and_says_so(captions: dict[str, str], name: str) -> None:
    assert captions[name].startswith("trust on multicap, seed 0.")


def test_thirty_names_are_told_apart_by_colour_and_by_either_of_the_rest() -> None:
    look = drawing.styles([str(number) for number in range(30)])
    for other in ("hatch", "line", "marker"):
        assert len({(style["colour"], style[other]) for style in look.values()}) == 30


def heights(axes: Any) -> list[float]:
    return [patch.get_height() for patch in axes.patches]


def test_a_study_draws_every_figure(drawn: tuple[dict[str, Any], list[Summary]]) -> None:
    assert set(drawn[0]) == ALL


def test_displacement_bars(drawn: tuple[dict[str, Any], list[Summary]]) -> None:
    figures, summaries = drawn
    first = next(run for run in summaries if run.method == "trust")
    expected = [first.displacement[group][t] for t in recorded.TEACHERS for group in first.displacement]
    assert heights(figures["displacement"][0]) == pytest.approx(expected)


def test_weight_bars_are_outlined_where_relevant(drawn: tuple[dict[str, Any], list[Summary]]) -> None:
    figures, summaries = drawn
    trusting = [run for run in summaries if run.method == "trust" and run.seed == 0]
    expected = [
        (run.allocation[group]["weights"][t], t in group.split("+"))
        for run in trusting
        for group in run.allocation
        for t in recorded.TEACHERS
    ]
    marks = [(patch.get_width(), patch.get_edgecolor()[:3] == (0, 0, 0)) for patch in figures["allocation"][0].patches]
    assert [width for width, _ in marks] == pytest.approx([width for width, _ in expected])
    assert [outlined for _, outlined in marks] == [outlined for _, outlined in expected]


def test_margins_are_counted_once_each(drawn: tuple[dict[str, Any], list[Summary]]) -> None:
    figures, summaries = drawn
    run = next(run for run in summaries if run.method == "trust" and run.margins)
    for axes, (domain, values) in zip(figures["margins"], run.margins.items(), strict=True):
        expected, _ = np.histogram(values, np.linspace(-1, 1, 21))
        assert sum(heights(axes)) == len(values) and heights(axes) == pytest.approx(expected.tolist())
        assert f"{domain}: {mean(v > 0 for v in values):.0%}" in axes.get_title()


def test_ablation_points_and_intervals_are_paired(drawn: tuple[dict[str, Any], list[Summary]], study: Path) -> None:
    def scores(method: str) -> list[float]:
        files = sorted((study / "multicap" / method).glob("*/evaluation/scores.json"))
        return [json.loads(file.read_text())[method]["overall"] for file in files]

    axes = drawn[0]["ablations"][0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["uniform", "without μ", "response-level"]
    (container,) = axes.containers
    points, _, (bars,) = container
    for place, method in enumerate(("uniform", "without-mu", "response-level")):
        differences = [100 * (a - b) for a, b in zip(scores(method), scores("trust"), strict=True)]
        assert points.get_xdata()[place] == pytest.approx(mean(differences))
        low, high = bars.get_segments()[place][:, 0]
        assert (high - low) / 2 == pytest.approx(stdev(differences))


def test_gamma_shows_gain_and_concentration(drawn: tuple[dict[str, Any], list[Summary]], study: Path) -> None:
    gains, sharpness = drawn[0]["gamma"]
    line = gains.containers[0][0]
    assert list(line.get_xdata()) == [3.0, 7.0]
    own = [
        json.loads(file.read_text())["trust"]["overall"]
        for file in sorted((study / "multicap" / "trust").glob("*/evaluation/scores.json"))
    ]
    assert line.get_ydata()[1] == pytest.approx(100 * (mean(own) - 0.2))
    assert all(0.5 < value < 0.7 for value in sharpness.lines[0].get_ydata())


def test_transfer_and_cost_bars(drawn: tuple[dict[str, Any], list[Summary]]) -> None:
    figures, summaries = drawn
    by_key = {(run.prompts, run.method, run.seed): run.own_scores["overall"] for run in summaries}
    expected = [
        mean(100 * (by_key[prompts, "trust", seed] - by_key[prompts, "uniform", seed]) for seed in (0, 1))
        for prompts in ("multicap", "singlecap")
    ]
    assert heights(figures["transfer"][0]) == pytest.approx(expected)
    seconds = [patch.get_width() for patch in figures["cost"][0].patches]
    assert seconds == pytest.approx([mean([360 / 2, 720 / 2])] * len(seconds))


def stored(study: Path, prompts: str, method: str, column: str = "overall") -> list[float]:
    files = sorted((study / prompts / method).glob("*/evaluation/scores.json"))
    return [100 * json.loads(file.read_text())[method][column] for file in files]


def test_error_bars_are_deviations_over_seeds(drawn: tuple[dict[str, Any], list[Summary]], study: Path) -> None:
    _, _, (bars,) = drawn[0]["gamma"][0].containers[0]
    for segment, method in zip(bars.get_segments(), ("gamma-3", "trust"), strict=True):
        assert np.ptp(segment[:, 1]) / 2 == pytest.approx(stdev(stored(study, "multicap", method)))
    (_, _, (bars,)) = next(c for c in drawn[0]["transfer"][0].containers if hasattr(c, "has_yerr"))
    for segment, prompts in zip(bars.get_segments(), ("multicap", "singlecap"), strict=True):
        pairs = zip(stored(study, prompts, "trust"), stored(study, prompts, "uniform"), strict=True)
        assert np.ptp(segment[:, 1]) / 2 == pytest.approx(stdev([a - b for a, b in pairs]))


def test_score_bars_are_means_over_seeds(drawn: tuple[dict[str, Any], list[Summary]], study: Path) -> None:
    axes = drawn[0]["scores"][0]
    names = [label.get_text() for label in axes.get_xticklabels()]
    for container, domain in zip(axes.containers, ("math", "code", "if"), strict=True):
        found = dict(zip(names, (patch.get_height() for patch in container.patches), strict=True))
        assert found["multicap\ntrust"] == pytest.approx(mean(stored(study, "multicap", "trust", domain)))
        assert found["initial student"] == pytest.approx(100 * recorded.REFERENCES["initial"][domain])


def test_change_bars_are_the_weight_that_changes_hands_by_place(
    drawn: tuple[dict[str, Any], list[Summary]], study: Path
) -> None:
    moved: list[list[float]] = [[] for _ in range(10)]
    for file in sorted((study / "multicap" / "trust" / "seed-0" / "allocation").iterdir()):
        rows = pq.read_table(file).to_pylist()
        for rollout in {each["rollout"] for each in rows}:
            mine = [each for each in rows if each["rollout"] == rollout]
            for at in range(1, len(mine)):
                weights = ((mine[at][f"weight_{t}"], mine[at - 1][f"weight_{t}"]) for t in recorded.TEACHERS)
                moved[10 * at // len(mine)].append(sum(abs(b - a) for a, b in weights) / 2)
    assert heights(drawn[0]["changes"][0]) == pytest.approx([mean(part) if part else 0 for part in moved], abs=1e-6)


def test_lines_over_training_are_the_logged_series(drawn: tuple[dict[str, Any], list[Summary]]) -> None:
    figures, summaries = drawn
    run = next(run for run in summaries if run.method == "trust")
    weights, concentration, scores = figures["weights"]
    for line, teacher in zip(weights.lines, recorded.TEACHERS, strict=True):
        assert list(line.get_ydata()) == run.series[f"weight_{teacher}"]
    assert list(concentration.lines[0].get_ydata()) == run.series["max_weight"]
    assert list(scores.lines[0].get_ydata()) == run.series["score_math"]
    loss, length, mass = figures["training"]
    for axes, key in ((loss, "loss"), (length, "length"), (mass, "student_mass")):
        assert list(axes.lines[0].get_ydata()) == summaries[0].series[key]


def test_names_with_dollars_and_markup_are_drawn_as_they_are(tmp_path: Path) -> None:
    groups = [["$x_{$"], ["<b>&"], None]
    run = recorded.make_run(tmp_path / "run", teachers=["$x_{$", "<b>&"], groups=groups, steps=1)
    summaries = [summarise_run(found) for found in find_runs([run])]
    assert {picture.path.name for picture in draw_all(summaries, compare(summaries), tmp_path / "figures")} == {
        "allocation", "margins", "displacement", "weights", "training", "changes", "cost",
    }  # fmt: skip


def test_the_same_numbers_give_the_same_file(trusting: Path, tmp_path: Path) -> None:
    summaries = [summarise_run(run) for run in find_runs([trusting])]
    for folder in ("one", "two"):
        draw_all(summaries, compare(summaries), tmp_path / folder)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
