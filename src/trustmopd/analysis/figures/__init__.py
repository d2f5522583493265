"""The paper's figures from run files, each as PNG and SVG. A figure that these runs cannot fill is not drawn."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trustmopd.analysis.figures.drawing import Picture
from trustmopd.analysis.figures.score_figures import (
    draw_ablations,
    draw_cost,
    draw_gamma,
    draw_scores,
    draw_training,
    draw_transfer,
)
from trustmopd.analysis.figures.trust_figures import (
    draw_allocation,
    draw_changes,
    draw_displacement,
    draw_margins,
    draw_weights,
)
from trustmopd.analysis.statistics.comparison import Comparison
from trustmopd.analysis.statistics.summary import Summary

_FIGURES: dict[str, Callable[[Sequence[Summary], Comparison, Path], Picture | None]] = {
    "scores": draw_scores,
    "allocation": draw_allocation,
    "margins": draw_margins,
    "displacement": draw_displacement,
    "ablations": draw_ablations,
    "gamma": draw_gamma,
    "transfer": draw_transfer,
    "weights": draw_weights,
    "training": draw_training,
    "changes": draw_changes,
    "cost": draw_cost,
}


def draw_all(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> list[Picture]:
    drawn = (
        comparison.attempt(f"figure of {name}", partial(draw, summaries, comparison, folder))
        for name, draw in _FIGURES.items()
    )
    return [picture for picture in drawn if picture is not None]
