"""Colours of figures: different ones for each series, ink and paper, and their counterparts on a dark page."""

from itertools import cycle, islice

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


def colours(count: int) -> tuple[str, ...]:
    """A longer list begins with the same colours. Beyond forty they repeat."""
    return tuple(islice(cycle(_COLOURS), count))
