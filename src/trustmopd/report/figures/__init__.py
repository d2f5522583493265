"""The paper's figures from run files, each as PNG and SVG. A figure that these runs cannot fill is not drawn."""

from importlib.util import find_spec
from pathlib import Path

if find_spec("matplotlib") is None:
    raise ValueError("figures need matplotlib. Install it: pip install 'trustmopd[viewer]'")

from trustmopd.report.figures import score_figures, trust_figures, watch_figures
from trustmopd.report.figures.drawing import Picture
from trustmopd.report.statistics.comparison import Comparison

#: By the name of the files, in the order of the page.
_FIGURES = {
    "scores": score_figures.draw_scores,
    "allocation": trust_figures.draw_allocation,
    "margins": trust_figures.draw_margins,
    "displacement": trust_figures.draw_displacement,
    "ablations": score_figures.draw_ablations,
    "gamma": score_figures.draw_gamma,
    "transfer": score_figures.draw_transfer,
    "weights": trust_figures.draw_weights,
    "groups": trust_figures.draw_groups,
    "watched": watch_figures.draw_watched,
    "training": score_figures.draw_training,
}


def draw_all(comparison: Comparison, folder: Path) -> list[Picture]:
    drawn = (draw(comparison, folder / name) for name, draw in _FIGURES.items())
    return [picture for picture in drawn if picture is not None]
