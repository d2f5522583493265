"""Figures of whom a run trusted: weights by prompts, margins, scores, training, and within responses."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.patches import Patch

from trustmopd.analysis.cells import one_seed
from trustmopd.analysis.compare import FULL, Comparison
from trustmopd.analysis.drawing import Picture, figure, grouped_bars, styles
from trustmopd.analysis.dynamics import BAND
from trustmopd.analysis.summary import Summary


def the_trusting(summaries: Sequence[Summary]) -> list[Summary]:
    """Runs whose allocation is worth drawing: one seed of full trust in each setting, or else of any scored rule."""
    first = [run for run in one_seed(summaries) if run.allocation and len(run.teachers) > 1]
    return [run for run in first if run.method == FULL] or [run for run in first if run.scores] or first[:1]


def _which(runs: Sequence[Summary]) -> str:
    """The runs that a figure shows: most of a comparison is not in it."""
    return "; ".join(f"{run.method} on {run.prompts}, seed {run.seed}" for run in runs) + "."


def draw_allocation(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    """Mean weight of each teacher by what the prompts need; relevant teachers are outlined."""
    runs = the_trusting(summaries)
    bars = [(run, group) for run in runs for group in run.allocation]
    if not bars:
        return None
    teachers = runs[0].teachers
    look = styles(teachers)
    with figure(folder / "allocation", 7.2, 0.9 + 0.36 * len(bars)) as axes:
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
                    edgecolor="black" if relevant else "white",
                    linewidth=1.2 if relevant else 0.5,
                )
                if weight > 0.07:
                    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
                    axes.text(left + weight / 2, row, f"{weight:.2f}", ha="center", va="center", fontsize=8, bbox=box)
                left += weight
        names = [f"{run.prompts}: {group}" if len(runs) > 1 else group for run, group in bars]
        axes.set_yticks(range(len(bars)), names)
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_xlabel("mean weight of each teacher; outlined: the teachers that a prompt needs")
        keys = [
            Patch(facecolor=look[t]["colour"], hatch=look[t]["hatch"], edgecolor="black", label=t) for t in teachers
        ]
        axes.legend(handles=keys, ncols=len(teachers), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    caption = f"{_which(runs)} Means over recorded rollouts, by what their prompts need. Labels only sort the rows."
    return Picture(folder / "allocation", "Where the weight went", caption)


def draw_margins(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    run = next((run for run in the_trusting(summaries) if run.margins), None)
    if run is None:
        return None
    look = styles(run.teachers)
    count = len(run.margins)
    with figure(folder / "margins", 2.5 * count + 0.6, 2.6, count, squeeze=False, sharey=True) as axes:
        for panel, (domain, values) in zip(axes[0], run.margins.items(), strict=True):
            bins = [-1 + step / 10 for step in range(21)]
            panel.hist(
                values,
                bins,
                color=look[domain]["colour"],
                hatch=look[domain]["hatch"],
                edgecolor="white",
                linewidth=0.4,
            )
            panel.axvline(0, color="black", linewidth=0.8)
            positive = sum(value > 0 for value in values) / len(values)
            panel.set_title(f"{domain}: {positive:.0%} above 0", fontsize=9)
            panel.set_xlabel("margin")
            panel.set_xlim(-1, 1)
        axes[0][0].set_ylabel("rollouts")
    caption = (
        f"{_which([run])} The matched teacher's mean weight minus the largest other, one value a recorded rollout."
    )
    return Picture(folder / "margins", "Margin of the matched teacher", caption)


def draw_displacement(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    run = next((run for run in (*the_trusting(summaries), *one_seed(summaries)) if run.displacement), None)
    if run is None:
        return None
    groups = list(run.displacement)
    with figure(folder / "displacement", max(4.5, 1.3 * len(groups) + 1), 2.8) as axes:
        series = {t: [run.displacement[group].get(t) for group in groups] for t in run.teachers}
        grouped_bars(axes, groups, series, styles(run.teachers), "%.2f")
        axes.set_ylabel("mean raw score of each teacher")
        axes.legend(ncols=len(run.teachers), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    caption = (
        f"{_which([run])} Mean over the response tokens of recorded rollouts, before calibration: teachers differ in "
        "scale."
    )
    return Picture(folder / "displacement", "Raw scores by teacher and prompts", caption)


def draw_weights(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    logged = (
        run for run in the_trusting(summaries) or summaries if {f"weight_{t}" for t in run.teachers} & set(run.series)
    )
    run = next(logged, None)
    if run is None or len(run.teachers) < 2:
        return None
    look, steps = styles(run.teachers), run.series["step"]
    scored = [t for t in run.teachers if f"score_{t}" in run.series]
    with figure(folder / "weights", 9.0 if scored else 6.2, 2.7, 3 if scored else 2) as panels:
        for kind, panel in zip(("weight", "score"), (panels[0], panels[-1]), strict=True):
            for teacher in run.teachers if kind == "weight" else scored:
                if (values := run.series.get(f"{kind}_{teacher}")) is not None:
                    style = look[teacher]
                    panel.plot(
                        steps, values, color=style["colour"], linestyle=style["line"], linewidth=1.2, label=teacher
                    )
        panels[0].set_ylabel("mean weight")
        panels[0].set_ylim(0, 1)
        panels[0].legend(fontsize=8)
        shares = {
            "max weight": ("max_weight", 1, "-"),
            "effective teachers / K": ("effective_teachers", len(run.teachers), "--"),
        }
        for name, (key, divisor, line) in shares.items():
            if values := run.series.get(key):
                panels[1].plot(steps, [v / divisor for v in values], color="black", linestyle=line, label=name)
        panels[1].set_ylim(0, 1)
        if panels[1].lines:
            panels[1].legend(fontsize=8)
        if scored:
            for edge in BAND:
                panels[2].axhline(edge, color="grey", linewidth=0.8, linestyle=":")
            panels[2].set_ylabel("mean calibrated score" if run.calibrated else "mean raw score")
        for panel in panels:
            panel.set_xlabel("step")
    caption = (
        f"{_which([run])} Means over all response tokens of each step. Dotted: the band in which mu still describes a "
        "teacher."
    )
    return Picture(folder / "weights", "Weights, concentration and scores over training", caption)


def draw_changes(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> Picture | None:
    run = next((run for run in the_trusting(summaries) if run.change_profile), None)
    if run is None:
        return None
    parts = len(run.change_profile)
    with figure(folder / "changes", 5.0, 2.5) as axes:
        axes.bar(range(parts), run.change_profile, 0.85, color="#0072B2", edgecolor="white")
        axes.set_xticks(range(parts), [f"{100 * part // parts}%" for part in range(parts)])
        axes.set_xlabel("place in the response")
        axes.set_ylabel("weight that changes\nhands at a token")
    caption = (
        f"{_which([run])} Mean over recorded rollouts of the total variation between a token's weights and those of "
        "the one before."
    )
    return Picture(folder / "changes", "Where in a response allocation changes", caption)
