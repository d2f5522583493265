"""Figure of accuracy while training."""

from pathlib import Path

from trustmopd.report.figures.drawing import Picture, figure, legend, styles, whole_numbers
from trustmopd.report.statistics.comparison import Comparison, united


def draw_watched(comparison: Comparison, path: Path) -> Picture | None:
    """A panel for each run and kind of prompts, one line per domain with its interval."""
    panels = [
        (f"{comparison.label(run, run.method)}: {kind}", curves)
        for run in comparison.one_seed(lambda run: run.curves)
        for kind, curves in run.curves.items()
    ]
    if not panels:
        return None
    look = styles(united(curves for _, curves in panels))
    with figure(path, 1.9, len(panels)) as rows:
        for (title, curves), axes in zip(panels, rows[:, 0], strict=True):
            for domain, points in curves.items():
                steps, scores, lows, highs = zip(*points, strict=True)
                colour = look[domain]["colour"]
                axes.plot(steps, scores, marker=look[domain]["marker"], markersize=3, color=colour, label=domain)
                axes.fill_between(steps, lows, highs, color=colour, alpha=0.15, linewidth=0)
            axes.set_title(title, fontsize=9)
            axes.set_ylabel("accuracy")
            axes.set_xlabel("step")
            axes.set_ylim(0, 1)
            whole_numbers(axes.xaxis)
        legend(rows[0, 0])
    caption = "Shaded: 95% intervals of the responses that were graded. Rollouts: ten logged steps together."
    return Picture(path, "Accuracy while training", caption)
