"""How figures look. They are as wide as a column of a paper or a phone's screen, with panels below each other. Colours
suit colour-blind readers; hatches, markers and line styles work in black and white. SVGs turn dark on a dark page."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import matplotlib

from trustmopd.report.statistics.summary import Summary

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

INK, PAPER, GREY = "#1a1c20", "#ffffff", "#8a919b"
#: Okabe–Ito, without yellow and black; the token viewer uses the same.
_FIRST = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
#: After these, each is the one farthest from all before it (in Oklab), among those that are visible on both pages.
_COLOURS = (
    *_FIRST,
    *("#a21774", "#745d00", "#8b5de8", "#8bd117", "#b90000", "#8b5d74", "#a28b00", "#007400", "#4646d1"),
    *("#b98bff", "#a2b98b", "#b946b9", "#ff5d74", "#d12e74", "#7446a2", "#467474", "#ff8be8", "#e8a28b"),
    *("#17a200", "#7474b9", "#46d1b9", "#748bff", "#a25d2e", "#4674e8", "#a2a2d1", "#00d174", "#5db900"),
    *("#5d8b2e", "#b95d74", "#468ba2", "#b98b74", "#5d5d8b", "#a274d1", "#e85db9"),
)
#: The page's own colours (`assets/style.css`). Further colours have medium lightness and do not change.
DARK = {
    INK: "#e6e8ec",
    PAPER: "#16181c",
    **dict(zip(_FIRST, ("#3a9fdc", "#e6a817", "#19b588", "#d58ab4", "#6cc0ee", "#e8762a"), strict=True)),
}
#: In inches: 403 pixels on a page. A screen 390 pixels wide shows it at nine tenths of that size.
WIDTH = 4.2
# For black-and-white print and colour-blind readers.
HATCHES = ("", "//", "..", "xx", "\\\\")
LINES = ("-", "--", "-.", ":", (0, (5, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_SETTINGS: dict[Any, Any] = {
    "text.parse_math": False,  # names come from data: a $ is a plain dollar sign
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    "svg.hashsalt": "trustmopd",  # the same figure gives the same file
}


@dataclass(frozen=True)
class Picture:
    """A drawn figure: its files without suffix, what it shows, and how to read it."""

    path: Path
    title: str
    caption: str


def colours(count: int) -> tuple[str, ...]:
    """A longer list begins with the same colours. Beyond forty they repeat."""
    return tuple(islice(cycle(_COLOURS), count))


def styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, hatch, line and marker by name, in order; no two names share a colour."""
    every = zip(names, colours(len(names)), cycle(HATCHES), cycle(LINES), cycle(MARKERS), strict=False)
    return {
        name: {"colour": colour, "hatch": hatch, "line": line, "marker": marker}
        for name, colour, hatch, line, marker in every
    }


@contextmanager
def figure(path: Path, height: float, rows: int = 1, columns: int = 1, **options: Any) -> Iterator[Any]:
    """Axes to draw into, [rows, columns], with rows of the given height in inches. Saved as `path`.png and .svg at the
    end of the block."""
    with plt.rc_context(_SETTINGS):
        drawn, axes = plt.subplots(
            rows, columns, figsize=(WIDTH, height * rows), layout="constrained", squeeze=False, **options
        )
        try:
            yield axes
            drawn.draw_without_rendering()
            drawn.set_layout_engine("none")  # laid out once, for both files
            path.parent.mkdir(parents=True, exist_ok=True)
            for suffix, metadata in ((".png", {}), (".svg", {"Date": None})):
                partial = path.with_name(f".{path.name}.partial{suffix}")
                drawn.savefig(partial, dpi=200, metadata=metadata)
                if suffix == ".svg":
                    partial.write_text(_themed(partial.read_text(encoding="utf-8")), encoding="utf-8")
                partial.replace(path.with_name(path.name + suffix))
        finally:
            plt.close(drawn)


def _themed(svg: str) -> str:
    """The drawing with a style that recolours it if the reader prefers a dark page."""
    rules = [
        f'[{kind}="{light}"],[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    ]
    style = f"<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>"
    return re.sub(r"(<svg[^>]*>)", lambda opening: f"{opening[0]}\n {style}", svg, count=1)


def wrapped(name: str, width: int = 20) -> str:
    """A label on several lines, so that bars have enough room."""
    return textwrap.fill(name, width, break_on_hyphens=False)


def lines_in(names: Iterable[str]) -> int:
    """How many lines the longest label takes."""
    return max(wrapped(name).count("\n") + 1 for name in names)


def named_rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [wrapped(name) for name in names])


def draw_series(axes: Any, run: Summary, shown: Mapping[str, str], look: Mapping[str, Mapping[str, Any]]) -> None:
    """A line over the steps for each series that the run logged, under the name that `shown` gives it."""
    for name, series in shown.items():
        if series in run.series:
            style = {"color": look[name]["colour"], "linestyle": look[name]["line"]}
            axes.plot(run.series["step"], run.series[series], linewidth=1.2, label=name, **style)
    axes.set_xlabel("step")
    whole_numbers(axes.xaxis)


def whole_numbers(axis: Any) -> None:
    """Integer ticks, for steps and counts: as many as there is room for."""
    axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def legend(axes: Any, handles: Sequence[Any] | None = None) -> None:
    """Of all panels, and above them, in as many columns as fit; the figure grows by its height. Nothing is drawn if
    nothing has a name."""
    if handles is None:
        labelled = (panel.get_legend_handles_labels() for panel in axes.figure.axes)
        handles = list({name: handle for pair in labelled for handle, name in zip(*pair, strict=True)}.values())
    names = [wrapped(str(handle.get_label()), 24) for handle in handles]
    if not names:
        return
    longest = max(len(line) for name in names for line in name.split("\n"))
    columns = max(1, min(len(names), int(WIDTH / (0.5 + 0.065 * longest))))
    rows = -(-len(names) // columns) * max(name.count("\n") + 1 for name in names)
    axes.figure.set_figheight(axes.figure.get_figheight() + 0.17 * rows)
    axes.figure.legend(handles, names, loc="outside upper center", ncols=columns)
