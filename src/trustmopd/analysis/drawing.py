"""How figures look: told apart by colour-blind readers, and by hatches, markers and line styles in black and white."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

try:
    import matplotlib
except ImportError as error:  # pragma: no cover
    raise ValueError("figures need matplotlib. Install it with: pip install 'trustmopd[viewer]'") from error

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

# Okabe–Ito, without yellow and black; the token viewer uses the same.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
# Five hatches and lines and seven markers against six colours: no pair comes again before the thirtieth name.
HATCHES = ("", "//", "..", "xx", "\\\\")
LINES = ("-", "--", "-.", ":", (0, (5, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_SETTINGS: dict[Any, Any] = {
    "text.parse_math": False,  # names come from data, and a $ in one is a dollar
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.formatter.useoffset": False,
    "svg.hashsalt": "trustmopd",  # the same figure gives the same file
}


@dataclass(frozen=True)
class Picture:
    """A drawn figure: its files without suffix, what it shows, and how to read it."""

    path: Path
    title: str
    caption: str


def styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, hatch, line and marker by name, in order."""
    every = zip(cycle(COLOURS), cycle(HATCHES), cycle(LINES), cycle(MARKERS), strict=False)
    keys = ("colour", "hatch", "line", "marker")
    return {
        name: dict(zip(keys, style, strict=True)) for name, style in zip(names, islice(every, len(names)), strict=True)
    }


@contextmanager
def figure(path: Path, width: float, height: float, panels: int = 1, rows: int = 0, **options: Any) -> Iterator[Any]:
    """Axes to draw into, a matrix of them where `rows` are given; saved as `path`.png and .svg on leaving."""
    with plt.rc_context(_SETTINGS):
        size = (width, height * max(1, rows))
        drawn, axes = plt.subplots(
            max(1, rows), panels, figsize=size, layout="constrained", squeeze=not rows, **options
        )
        try:
            yield axes
            drawn.draw_without_rendering()
            drawn.set_layout_engine("none")  # laid out once, for both files
            path.parent.mkdir(parents=True, exist_ok=True)
            for suffix, metadata in ((".png", {}), (".svg", {"Date": None})):
                partial = path.with_name(f".{path.name}.partial{suffix}")
                drawn.savefig(partial, dpi=160, metadata=metadata)
                partial.replace(path.with_name(path.name + suffix))
        finally:
            plt.close(drawn)


def whole_numbers(axis: Any) -> None:
    """Ticks of steps and counts."""
    axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def grouped_bars(
    axes: Any,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    look: Mapping[str, Mapping[str, Any]],
    fmt: str,
) -> None:
    """One cluster of bars a group, one bar a series; None leaves its place empty."""
    width = 0.8 / max(1, len(series))
    for index, (name, values) in enumerate(series.items()):
        places = [place + (index - (len(series) - 1) / 2) * width for place in range(len(groups))]
        shown = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
        bars = axes.bar(
            [place for place, _ in shown],
            [value for _, value in shown],
            width,
            label=name,
            color=look[name]["colour"],
            hatch=look[name]["hatch"],
            edgecolor="white",
        )
        if len(groups) * len(series) <= 24:
            axes.bar_label(bars, fmt=fmt, fontsize=7, padding=1)
    axes.set_xticks(range(len(groups)), groups)
