"""One picture of the comparison: what share of the gap each method recovered, on both prompt sets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trustmopd.analysis.figures.drawing import DEVIATION, figure, legend, styles
from trustmopd.analysis.figures.palette import GREY, PAPER
from trustmopd.testbed.experiment import METHODS, PROMPT_SETS


def draw_recovery(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str], path: Path) -> Path:
    """Bars are means over seeds, whiskers standard deviations; the line is the routed teachers."""
    sets = [name for name in PROMPT_SETS if any(row["prompts"] == name for row in rows)]
    methods = [name for name in METHODS if any(row["method"] == name for row in rows)]
    look, height = styles(sets), 0.8 / len(sets)
    with figure(path, 0.9 + 0.3 * len(methods)) as ((axes,),):
        for index, prompts in enumerate(sets):
            mine = {row["method"]: row["recovery"] for row in rows if row["prompts"] == prompts}
            shown = [method for method in methods if method in mine]
            bars = axes.barh(
                [methods.index(method) + (index - (len(sets) - 1) / 2) * height for method in shown],
                [100 * mine[method].mean for method in shown],
                height,
                xerr=[100 * mine[method].sd for method in shown],
                label=titles[prompts],
                color=look[prompts]["colour"],
                hatch=look[prompts]["hatch"],
                error_kw=DEVIATION,
                edgecolor=PAPER,
            )
            axes.bar_label(bars, fmt="%.0f", fontsize=7, padding=4)
        axes.axvline(100, color=GREY, linewidth=1, linestyle=":")
        axes.set_yticks(range(len(methods)), methods)
        axes.invert_yaxis()
        axes.set_xlabel("recovered share of the gap from initial student\nto routed teachers, %")
        legend(axes)
    return path.with_name(path.name + ".png")
