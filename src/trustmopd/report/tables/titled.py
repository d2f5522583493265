"""A table with its title and note, and the cells that several tables share."""

from collections.abc import Iterable
from dataclasses import dataclass

from trustmopd.report.statistics.comparison import Comparison, Setting
from trustmopd.util.stats import Spread, spread
from trustmopd.util.text_tables import TextTable, text_table

NONE = "–"


@dataclass(frozen=True)
class Titled:
    """A table, the name of its files, its title, and what a reader must know to read it."""

    name: str
    title: str
    note: str
    table: TextTable


def titled(name: str, title: str, note: str, header: Iterable[str], rows: Iterable[Iterable[object]]) -> Titled:
    return Titled(name, title, note, text_table(header, rows))


def text(found: Spread | None) -> str:
    return found.text() if found else NONE


def percent(values: dict[int, float]) -> str:
    return spread(values.values()).percent() if values else NONE


def signed(difference: Spread | None) -> str:
    shown = difference.percent() if difference else NONE
    return shown if shown.startswith(("-", NONE)) else f"+{shown}"


def score_cells(comparison: Comparison, setting: Setting, method: str) -> list[str]:
    """A method's score in each domain, and overall."""
    return [percent(setting.score(method, column)) for column in (*comparison.columns, "overall")]
