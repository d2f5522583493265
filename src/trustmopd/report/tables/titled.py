"""A table with its title and note, and the cells that several tables share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trustmopd.report.statistics.comparison import Comparison, Setting
from trustmopd.report.statistics.summary import Summary
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


def by_teacher(
    comparison: Comparison, runs: Sequence[Summary], cells: Callable[[Summary, str], Iterable[str]]
) -> list[list[str]]:
    """A row for each teacher of each run that has cells, with the run's method if there are several."""
    several = len(comparison.one_seed()) > 1
    return [
        [f"{comparison.label(run, run.method)}, {teacher}" if several else teacher, *row]
        for run in runs
        for teacher in run.teachers
        if (row := list(cells(run, teacher)))
    ]


def one_seed_note(comparison: Comparison, runs: Sequence[Summary]) -> str:
    """Which seeds are shown, if there are others."""
    seeds = sorted({run.seed for run in runs})
    return f" One seed of each method ({', '.join(map(str, seeds))})." if comparison.seeds > 1 else ""


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
