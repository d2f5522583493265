"""Figures of whom a run trusted: weights by prompts, margins, scores, training, and within responses. Each setting has
a row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.patches import Patch

from trustmopd.report.figures.drawing import (
    GREY,
    INK,
    PAPER,
    Picture,
    draw_series,
    figure,
    legend,
    named_rows,
    styles,
    whole_numbers,
)
from trustmopd.report.statistics.comparison import Comparison, united
from trustmopd.report.statistics.summary import Summary
from trustmopd.runs.columns import GROUPS, OTHERS
from trustmopd.runs.guard import BAND


def _which(runs: Sequence[Summary]) -> str:
    """Names the runs that a figure shows: it does not show all of a comparison."""
    return "; ".join(f"{run.method} on {run.prompts}, seed {run.seed}" for run in runs) + "."


def _entitle(panel: Any, comparison: Comparison, run: Summary, title: str = "") -> None:
    """A panel's own title. If there are several rows, the first panel of each also names its run."""
    where = comparison.label(run) if len(comparison.settings) > 1 else ""
    panel.set_title("\n".join(filter(None, (where, title))), fontsize=9)


def draw_allocation(comparison: Comparison, path: Path) -> Picture | None:
    """Mean weight of each teacher by what the prompts need; relevant teachers are outlined."""
    runs = comparison.trusting()
    bars = [(run, group) for run in runs for group in run.allocation]
    if not bars:
        return None
    teachers = united(run.teachers for run in runs)
    look = styles(teachers)
    with figure(path, 0.9 + 0.36 * len(bars)) as ((axes,),):
        for row, (run, group) in enumerate(bars):
            left = 0.0
            for teacher in teachers:
                weight = run.allocation[group]["weights"].get(teacher, 0.0)
                relevant = teacher in run.allocation[group]["needs"]
                axes.barh(
                    row,
                    weight,
                    left=left,
                    color=look[teacher]["colour"],
                    alpha=1.0 if relevant else 0.45,
                    hatch=look[teacher]["hatch"],
                    edgecolor=INK if relevant else PAPER,
                    linewidth=1.2 if relevant else 0.5,
                )
                if weight > 0.1:
                    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.5}
                    axes.text(left + weight / 2, row, f"{weight:.2f}", ha="center", va="center", fontsize=8, bbox=box)
                left += weight
        names = [f"{comparison.label(run)}: {group}" if len(runs) > 1 else group for run, group in bars]
        named_rows(axes, names)
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_xlabel("mean weight of each teacher;\noutlined: the teachers that a prompt needs")
        keys = [Patch(facecolor=look[t]["colour"], hatch=look[t]["hatch"], edgecolor=INK, label=t) for t in teachers]
        legend(axes, keys)
    caption = f"{_which(runs)} Means over recorded rollouts, by what their prompts need. Labels only sort the rows."
    return Picture(path, "Where the weight went", caption)


def draw_margins(comparison: Comparison, path: Path) -> Picture | None:
    runs = [run for run in comparison.trusting() if run.margins]
    if not runs:
        return None
    matched = [(run, teacher, values) for run in runs for teacher, values in run.margins.items()]
    with figure(path, 1.35, len(matched)) as rows:
        for (run, teacher, values), panel in zip(matched, rows.flat, strict=True):
            look = styles(run.teachers)[teacher]
            bins = [-1 + step / 10 for step in range(21)]
            panel.hist(values, bins, edgecolor=PAPER, linewidth=0.4, color=look["colour"], hatch=look["hatch"])
            panel.axvline(0, color=INK, linewidth=0.8)
            positive = sum(value > 0 for value in values) / len(values)
            _entitle(panel, comparison, run, f"{teacher}: {positive:.0%} of {len(values)} above 0")
            panel.set_xlim(-1, 1)
            panel.set_xticks([-1, -0.5, 0, 0.5, 1])
            panel.set_ylabel("rollouts")
            whole_numbers(panel.yaxis)
        rows[-1, 0].set_xlabel("margin")
    caption = f"{_which(runs)} The matched teacher's mean weight minus the largest other, one value per rollout."
    return Picture(path, "Margin of the matched teacher", caption)


def draw_displacement(comparison: Comparison, path: Path) -> Picture | None:
    trusting = [run for run in comparison.trusting() if run.displacement]
    runs = trusting or comparison.one_seed(lambda run: run.displacement)[:1]
    if not runs:
        return None
    bars = max(len(run.displacement) * len(run.teachers) for run in runs)
    with figure(path, 0.7 + 0.14 * bars, len(runs)) as rows:
        for run, axes in zip(runs, rows.flat, strict=True):
            width = 0.8 / len(run.teachers)
            for number, (teacher, look) in enumerate(styles(run.teachers).items()):
                rows_of = [row + (number - (len(run.teachers) - 1) / 2) * width for row in range(len(run.displacement))]
                scores = [by_teacher[teacher] for by_teacher in run.displacement.values()]
                style = {"color": look["colour"], "hatch": look["hatch"], "edgecolor": PAPER}
                bars = axes.barh(rows_of, scores, width, label=teacher, **style)
                axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
            named_rows(axes, list(run.displacement))
            axes.set_ylim(len(run.displacement) - 0.5, -0.5)
            axes.margins(x=0.12)
            axes.set_xlabel("mean raw score")
            _entitle(axes, comparison, run)
        legend(rows[0, 0])
    caption = (
        f"{_which(runs)} Each teacher's mean over the response tokens of recorded rollouts, before calibration: "
        "teachers differ in scale."
    )
    return Picture(path, "Raw scores by teacher and prompts", caption)


def draw_weights(comparison: Comparison, path: Path) -> Picture | None:
    def logged(run: Summary) -> bool:
        return len(run.teachers) > 1 and bool({f"weight_{t}" for t in run.teachers} & set(run.series))

    runs = [run for run in comparison.trusting() if logged(run)] or comparison.one_seed(logged)[:1]
    if not runs:
        return None
    scored = any(f"score_{t}" in run.series for run in runs for t in run.teachers)
    panels = 3 if scored else 2
    with figure(path, 1.6, panels * len(runs)) as rows:
        for place, run in enumerate(runs):
            mine = rows[panels * place : panels * (place + 1), 0]
            _weights_of(run, mine)
            _entitle(mine[0], comparison, run)
        legend(rows[0, 0])
    band = " Dotted: the band in which μ still describes a teacher." if any(run.calibrated for run in runs) else ""
    caption = f"{_which(runs)} Means over all response tokens of each step.{band}"
    return Picture(path, "Weights, concentration and scores over training", caption)


def _weights_of(run: Summary, panels: Sequence[Any]) -> None:
    look = styles(run.teachers)
    draw_series(panels[0], run, {teacher: f"weight_{teacher}" for teacher in run.teachers}, look)
    panels[0].set_ylabel("mean weight")
    draw_series(panels[1], run, {"max weight": "max_weight"}, {"max weight": {"colour": INK, "line": "-"}})
    panels[1].set_ylabel("mean max weight")
    for panel in panels[:2]:
        panel.set_ylim(0, 1.02)
    for panel in panels[2:]:
        draw_series(panel, run, {teacher: f"score_{teacher}" for teacher in run.teachers}, look)
        panel.set_ylabel("mean calibrated\nscore" if run.calibrated else "mean raw score")
        for edge in BAND if run.calibrated else ():
            panel.axhline(edge, color=GREY, linewidth=0.8, linestyle=":")


def draw_groups(comparison: Comparison, path: Path) -> Picture | None:
    """Who gets the gradient: by domain if prompts have labels, otherwise by leading teacher."""
    kinds = {}
    for run in comparison.trusting() or comparison.one_seed():
        named = {
            kind: [name for name in (*run.teachers, OTHERS) if f"{kind}/{name}/gap" in run.series] for kind in GROUPS
        }
        if known := [kind for kind in GROUPS if named[kind]]:
            kinds[run.path] = run, known[0], named[known[0]]
    if not kinds:
        return None
    shown = {
        "gradient": "share of\ngradient",
        "gap": "mean gap to\nthe target",
        "length": "mean response\nlength, tokens",
    }
    with figure(path, 1.6, len(shown) * len(kinds)) as rows:
        for place, (run, kind, names) in enumerate(kinds.values()):
            look = styles([*run.teachers, OTHERS])
            panels = rows[len(shown) * place : len(shown) * (place + 1), 0]
            for panel, (what, title) in zip(panels, shown.items(), strict=True):
                draw_series(panel, run, {name: f"{kind}/{name}/{what}" for name in names}, look)
                panel.set_ylabel(title)
                panel.set_ylim(bottom=0)
            _entitle(panels[0], comparison, run, f"by {'domain' if kind == 'domain' else 'leading teacher'}")
        legend(rows[0, 0])
    caption = f"{_which([run for run, *_ in kinds.values()])} Gap: half the sum of |student − target|."
    return Picture(path, "Who gets the gradient", caption)
