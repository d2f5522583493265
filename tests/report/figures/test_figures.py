"""What is drawn is what was stored: heights, places and lengths of the marks themselves."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import recorded
from matplotlib.colors import to_hex
from PIL import Image

from trustmopd.report.figures import draw_all, drawing
from trustmopd.report.figures.drawing import DARK, GREY, INK, PAPER, colours
from trustmopd.report.readers.run import find_runs
from trustmopd.report.statistics.comparison import compare
from trustmopd.report.statistics.summary import Summary, summarise_run

ALL = {"groups",
    "scores", "allocation", "margins", "displacement", "ablations", "gamma", "transfer", "weights", "training",
}  # fmt: skip


@pytest.fixture(scope="module")
def drawn(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], list[Summary]]]:
    """Every figure of a study, kept open: name → its axes."""
    folder, kept = tmp_path_factory.mktemp("figures"), []
    summaries = [summarise_run(run) for run in find_runs([study])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing.plt, "close", kept.append)
        pictures = draw_all(compare(summaries), folder)
    for picture in pictures:
        with Image.open(picture.path.with_name(f"{picture.path.name}.png")) as image:
            width, height = image.size
            assert width == round(200 * drawing.WIDTH) and len(image.convert("RGB").getcolors(width * height)) > 10
        shown = picture.path.with_name(f"{picture.path.name}.svg").read_text()
        assert ElementTree.fromstring(shown).get("width") and shown.count("<path") > 10
    yield {picture.path.name: figure.axes for picture, figure in zip(pictures, kept, strict=True)}, summaries
    for figure in kept:
        drawing.plt.close(figure)


@pytest.fixture(scope="module")
def captions(study: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a study whose alphabetically first method is not trust."""
    pictures = draw_all(recorded.compared(study / "multicap"), tmp_path_factory.mktemp("captions"))
    return {picture.path.name: picture.caption for picture in pictures}


@pytest.mark.parametrize("name", ["allocation", "margins", "displacement", "weights"])
def test_a_figure_of_one_run_shows_the_trusting_one_and_says_so(captions: dict[str, str], name: str) -> None:
    assert captions[name].startswith("trust on multicap, seed 0.")


@pytest.mark.unit
@pytest.mark.parametrize("count", [1, 6, 7, 40])
def test_no_two_of_forty_names_share_a_colour(count: int) -> None:
    look = drawing.styles([str(number) for number in range(count)])
    light = [style["colour"] for style in look.values()]
    dark = [DARK.get(colour, colour) for colour in light]
    for shades in (light, dark):
        assert len(set(shades)) == count and not {INK, PAPER, GREY, DARK[INK], DARK[PAPER]} & set(shades)
    assert light[:6] == list(colours(6))[:count]  # a name keeps its colour, however many follow


def test_a_method_has_one_colour_in_every_figure_and_shares_it_with_none(
    drawn: tuple[dict[str, Any], list[Summary]],
) -> None:
    figures, summaries = drawn
    used: dict[str, set[str]] = {}
    for axes in figures["training"]:
        for line in axes.lines:
            used.setdefault(line.get_label(), set()).add(to_hex(line.get_color()))
    axes = figures["scores"][0]
    for label, bar in zip(labels(axes), axes.patches, strict=True):
        label = label.split(", ", 1)[-1]  # without its prompt set
        used.setdefault(label, set()).add(to_hex(bar.get_facecolor()))
    assert used.pop("initial student") == used.pop("routed teachers") == {GREY}
    assert set(used) == {run.method for run in summaries} and all(len(shades) == 1 for shades in used.values())
    assert len(set.union(*used.values())) == len(used)


def trusting(summaries: list[Summary]) -> list[Summary]:
    return [run for run in summaries if run.method == "trust" and run.seed == 0]


def heights(axes: Any) -> list[float]:
    return [patch.get_height() for patch in axes.patches]


def labels(axes: Any) -> list[str]:
    return [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]


def widths(axes: Any) -> list[float]:
    return [patch.get_width() for patch in axes.patches]


def test_a_study_draws_every_figure(drawn: tuple[dict[str, Any], list[Summary]]) -> None:
    assert set(drawn[0]) == ALL


def test_displacement_bars(drawn: tuple[dict[str, Any], list[Summary]]) -> None:
    figures, summaries = drawn
    for axes, run in zip(figures["displacement"], trusting(summaries), strict=True):  # a row a setting
        expected = [run.displacement[group][t] for t in recorded.TEACHERS for group in run.displacement]
        assert widths(axes) == pytest.approx(expected) and axes.get_title() == run.prompts


def test_weight_bars_are_outlined_where_relevant(drawn: tuple[dict[str, Any], list[Summary]]) -> None:
    figures, summaries = drawn
    expected = [
        (run.allocation[group]["weights"][t], t in group.split("+"))
        for run in trusting(summaries)
        for group in run.allocation
        for t in recorded.TEACHERS
    ]
    marks = [(patch.get_width(), to_hex(patch.get_edgecolor()) == INK) for patch in figures["allocation"][0].patches]
    assert [width for width, _ in marks] == pytest.approx([width for width, _ in expected])
    assert [outlined for _, outlined in marks] == [outlined for _, outlined in expected]


def test_margins_are_counted_once_each(drawn: tuple[dict[str, Any], list[Summary]]) -> None:
    figures, summaries = drawn
    every = [(run.prompts, *each) for run in trusting(summaries) for each in run.margins.items()]
    for axes, (prompts, domain, values) in zip(figures["margins"], every, strict=True):
        expected, _ = np.histogram(values, np.linspace(-1, 1, 21))
        assert sum(heights(axes)) == len(values) and heights(axes) == pytest.approx(expected.tolist())
        positive = f"{mean(v > 0 for v in values):.0%} of {len(values)}"
        assert axes.get_title() == f"{prompts}\n{domain}: {positive} above 0"


def stored(study: Path, prompts: str, method: str, column: str = "overall") -> list[float]:
    files = sorted((study / prompts / method).glob("*/evaluation/scores.json"))
    return [100 * json.loads(file.read_text())[method][column] for file in files]


def test_score_bars_are_means_over_seeds(drawn: tuple[dict[str, Any], list[Summary]], study: Path) -> None:
    panels = drawn[0]["scores"]
    names = labels(panels[0])
    assert names[0] == "initial student" and names[-1] == "routed teachers"
    for axes, domain in zip(panels, ("math", "code", "if"), strict=True):
        (container,) = [each for each in axes.containers if hasattr(each, "patches")]
        assert axes.get_title() == domain
        assert [bar.get_y() + bar.get_height() / 2 for bar in container] == pytest.approx(range(len(names)))
        found = dict(zip(names, (patch.get_width() for patch in container.patches), strict=True))
        assert [text.get_text() for text in axes.texts] == [f"{score:.1f}" for score in found.values()]
        _, _, (lines,) = container.errorbar
        errors = dict(zip(names, (np.ptp(line[:, 0]) / 2 for line in lines.get_segments()), strict=True))
        folders = {"trust": "trust", "uniform": "uniform", "γ = 3": "gamma-3", "without μ": "without-mu"}
        students = [("multicap", method) for method in (*folders, "response-level")]
        students += [("singlecap", "trust"), ("singlecap", "uniform")]
        assert len(names) == len(students) + 2  # all that the main comparison has
        for prompts, method in students:
            scores = stored(study, prompts, folders.get(method, method), domain)
            assert found[f"{prompts}, {method}"] == pytest.approx(mean(scores))
            assert errors[f"{prompts}, {method}"] == pytest.approx(stdev(scores))
        for title, reference in (("initial student", "initial"), ("routed teachers", f"teacher-{domain}")):
            assert found[title] == pytest.approx(100 * recorded.REFERENCES[reference][domain]) and errors[title] == 0


@pytest.mark.parametrize(
    ("name", "of", "rows"),
    [
        ("ablations", "trust", {"uniform": "uniform", "without μ": "without-mu", "response-level": "response-level"}),
        ("transfer", "uniform", {"multicap": "trust", "singlecap": "trust"}),
    ],
)
def test_differences_are_paired_by_seed(
    drawn: tuple[dict[str, Any], list[Summary]], study: Path, name: str, of: str, rows: dict[str, str]
) -> None:
    (axes,) = drawn[0][name]
    (container,) = axes.containers
    points, _, (bars,) = container.lines
    assert labels(axes) == list(rows) and list(points.get_ydata()) == list(range(len(rows)))
    for row, folder, x, bar in zip(rows, rows.values(), points.get_xdata(), bars.get_segments(), strict=True):
        prompts = row if name == "transfer" else "multicap"
        pairs = zip(stored(study, prompts, folder), stored(study, prompts, of), strict=True)
        differences = [score - other for score, other in pairs]
        assert x == pytest.approx(mean(differences)) and np.ptp(bar[:, 0]) / 2 == pytest.approx(stdev(differences))


def test_lines_over_training_are_the_logged_series(drawn: tuple[dict[str, Any], list[Summary]]) -> None:
    figures, summaries = drawn
    for row, run in enumerate(trusting(summaries)):
        weights, concentration, scores = figures["weights"][3 * row : 3 * row + 3]
        for place, teacher in enumerate(recorded.TEACHERS):
            assert list(weights.lines[place].get_ydata()) == logged(run, f"weight/{teacher}")
            assert list(scores.lines[place].get_ydata()) == logged(run, f"score/{teacher}")
        assert [line.get_ydata()[0] for line in scores.lines[3:]] == pytest.approx([2 / 3, 1.5])  # the band
        assert list(concentration.lines[0].get_ydata()) == logged(run, "agreement/max_weight")
    first = {(run.prompts, run.method): run for run in summaries if run.seed == 0}
    keys = ("loss", "completions/mean_length", "candidates/student_mass")
    for row, prompts in enumerate(("multicap", "singlecap")):
        for axes, key in zip(figures["training"][3 * row : 3 * row + 3], keys, strict=True):
            lines = {line.get_label(): line for line in axes.lines}
            assert set(lines) == {method for where, method in first if where == prompts}
            for method, line in lines.items():
                assert list(line.get_ydata()) == logged(first[prompts, method], key)
                assert list(line.get_xdata()) == [1, 2]


def logged(run: Summary, key: str) -> list[float]:
    return [json.loads(line)[key] for line in (Path(run.path) / "metrics.jsonl").read_text().splitlines()]


def test_no_text_is_a_formula_left_raw(drawn: tuple[dict[str, Any], list[Summary]]) -> None:
    """Names are not parsed as formulas, so matplotlib's own labels may be none: those of logarithmic axes are."""
    for name, panels in drawn[0].items():
        for axes in panels:
            for low, high in ((0.002, 0.06), (1e-7, 3.0), (0.4, 0.5)):
                if axes.get_yscale() == "log":
                    axes.set_ylim(low, high)
                texts = [*axes.get_yticklabels(which="both"), *axes.get_xticklabels(which="both")]
                assert not [text for text in texts if "$" in text.get_text()], name


def test_names_with_dollars_and_markup_are_drawn_as_they_are(tmp_path: Path) -> None:
    groups = [["$x_{$"], ["<b>&"], None]
    run = recorded.make_run(tmp_path / "run", teachers=["$x_{$", "<b>&"], groups=groups, steps=1)
    assert {picture.path.name for picture in draw_all(recorded.compared(run), tmp_path / "figures")} == {
        "allocation", "margins", "displacement", "weights", "training",
    }  # fmt: skip


def test_the_same_numbers_give_the_same_file(trusting: Path, tmp_path: Path) -> None:
    summaries = [summarise_run(run) for run in find_runs([trusting])]
    for folder in ("one", "two"):
        draw_all(compare(summaries), tmp_path / folder)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
