"""Two pictures: what each student recovered, and where trust went. Readable without colour."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Patch

from trustmopd.testbed.experiment import STORY
from trustmopd.testbed.tasks import DOMAINS, MIXTURES

# Okabe–Ito: told apart by colour-blind readers, and with the hatching in black and white.
COLOURS = {"math": "#0072B2", "code": "#E69F00", "if": "#009E73"}
HATCHES = {"math": "", "code": "//", "if": ".."}


def draw_scores(rows: Mapping[str, Mapping[str, float]], folder: Path) -> Path:
    """Share of right answers by domain, for the students and what they started from and aim at."""
    shown = list(STORY)
    figure, axes = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
    width = 0.8 / len(DOMAINS)
    for index, domain in enumerate(DOMAINS):
        places = [row + (index - 1) * width for row in range(len(shown))]
        values = [100 * rows[name][domain] for name in shown]
        bars = axes.bar(
            places, values, width, label=domain, color=COLOURS[domain], hatch=HATCHES[domain], edgecolor="white"
        )
        axes.bar_label(bars, fmt="%.0f", fontsize=8, padding=1)
    labels = [f"{STORY[name]}\n{rows[name]['recovery']:.0%} of the gap" for name in shown]
    axes.set_xticks(range(len(shown)), labels)
    axes.set_ylabel("right answers, %")
    axes.set_ylim(0, 100)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="upper left")
    return _save(figure, folder / "scores")


def draw_allocation(allocation: Mapping[str, Mapping[str, Any]], folder: Path) -> Path:
    """Mean weight of each teacher by what the prompts need; relevant teachers are outlined."""
    order = (*DOMAINS, *MIXTURES)
    groups = sorted(allocation, key=order.index)
    figure, axes = plt.subplots(figsize=(7.2, 0.5 + 0.42 * len(groups)), layout="constrained")
    for row, needs in enumerate(groups):
        left = 0.0
        for domain in DOMAINS:
            weight = allocation[needs]["weights"].get(domain, 0.0)
            relevant = domain in needs.split("+")
            axes.barh(
                row,
                weight,
                left=left,
                color=COLOURS[domain],
                alpha=1.0 if relevant else 0.45,
                hatch=HATCHES[domain],
                edgecolor="black" if relevant else "white",
                linewidth=1.2 if relevant else 0.5,
            )
            if weight > 0.07:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
                axes.text(left + weight / 2, row, f"{weight:.2f}", ha="center", va="center", fontsize=8, bbox=box)
            left += weight
    axes.set_yticks(range(len(groups)), [needs.replace("+", " + ") for needs in groups])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("mean weight of each teacher; outlined: the teachers that a prompt needs")
    axes.spines[["top", "right"]].set_visible(False)
    keys = [Patch(facecolor=COLOURS[d], hatch=HATCHES[d], edgecolor="black", label=d) for d in DOMAINS]
    axes.legend(handles=keys, frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _save(figure, folder / "allocation")


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=160)
    plt.close(figure)
    return path.with_suffix(".svg")
