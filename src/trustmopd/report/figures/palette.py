"""Colours of figures: any number of different ones, ink and paper, and their counterparts on a dark page."""

import math
from functools import cache

import numpy as np

INK, PAPER, GREY = "#1a1c20", "#ffffff", "#8a919b"
#: Okabe–Ito, without yellow and black; the token viewer uses the same.
_FIRST = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
#: The page's own colours (`assets/style.css`). Further colours have medium lightness and do not change.
DARK = {
    INK: "#e6e8ec",
    PAPER: "#16181c",
    **dict(zip(_FIRST, ("#3a9fdc", "#e6a817", "#19b588", "#d58ab4", "#6cc0ee", "#e8762a"), strict=True)),
}
_TO_CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
_TO_LAB = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])


@cache
def colours(count: int) -> tuple[str, ...]:
    """`count` different colours; a longer list begins with the same ones. After the first six, each is the one farthest
    from all before it, among those that are visible on both pages."""
    levels = 12
    while len(_candidates(levels)) < count:
        levels *= 2
    left = _candidates(levels)
    places = np.array([_perceived(colour) for colour in left])
    chosen = list(_FIRST[:count])
    nearest = np.full(len(left), np.inf)
    for colour in (*chosen, *(DARK[colour] for colour in chosen), GREY):  # grey is not given to any series
        nearest = np.minimum(nearest, np.linalg.norm(places - _perceived(colour), axis=1))
    while len(chosen) < count:
        best = int(nearest.argmax())
        chosen.append(left[best])
        nearest = np.minimum(nearest, np.linalg.norm(places - places[best], axis=1))
    return tuple(chosen)


@cache
def _candidates(levels: int) -> list[str]:
    values = np.linspace(0, 255, levels).round().astype(int)
    every = [f"#{r:02x}{g:02x}{b:02x}" for r in values for g in values for b in values]
    return [colour for colour in every if _shows(*_perceived(colour)) and colour not in (*DARK, *DARK.values(), GREY)]


def _shows(lightness: float, *hue: float) -> bool:
    """Visible on white and on black, and neither grey nor glaring."""
    return 0.48 < lightness < 0.8 and 0.05 < math.hypot(*hue) < 0.21


def _perceived(colour: str) -> np.ndarray:
    """In Oklab, where distances match perception: lightness, then two axes of hue."""
    rgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return _TO_LAB @ np.cbrt(_TO_CONES @ linear)
