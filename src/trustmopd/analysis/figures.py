"""The paper's figures from run files, each as PNG and SVG. A figure that these runs cannot fill is not drawn."""

from collections.abc import Callable, Sequence
from pathlib import Path

from trustmopd.analysis.compare import Comparison
from trustmopd.analysis.drawing import Picture
from trustmopd.analysis.figures_scores import (
    draw_ablations,
    draw_cost,
    draw_gamma,
    draw_scores,
    draw_training,
    draw_transfer,
)
from trustmopd.analysis.figures_trust import (
    draw_allocation,
    draw_changes,
    draw_displacement,
    draw_margins,
    draw_weights,
)
from trustmopd.analysis.summary import Summary

_FIGURES: tuple[Callable[[Sequence[Summary], Comparison, Path], Picture | None], ...] = (
    draw_scores,
    draw_allocation,
    draw_margins,
    draw_displacement,
    draw_ablations,
    draw_gamma,
    draw_transfer,
    draw_weights,
    draw_training,
    draw_changes,
    draw_cost,
)


def draw_all(summaries: Sequence[Summary], comparison: Comparison, folder: Path) -> list[Picture]:
    return [drawn for draw in _FIGURES if (drawn := draw(summaries, comparison, folder)) is not None]
