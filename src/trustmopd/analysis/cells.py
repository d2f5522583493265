"""What the tables of analysis share: a titled table, labels of rows, and cells of figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trustmopd.analysis.compare import Comparison, Setting
from trustmopd.analysis.summary import Summary
from trustmopd.statistics import Spread, spread
from trustmopd.tables import TextTable

NONE = "–"


@dataclass(frozen=True)
class Titled:
    """A table, the name of its files, its title, and what a reader must know to read it."""

    name: str
    title: str
    note: str
    table: TextTable


def label_in(comparison: Comparison) -> Callable[[Setting, str], str]:
    """A method's name, with as much of its setting as tells it from others."""
    students = len({setting.student for setting in comparison.settings}) > 1
    prompts = len({setting.prompts for setting in comparison.settings}) > 1

    def label(setting: Setting, method: str) -> str:
        return ", ".join([setting.student] * students + [setting.prompts] * prompts + [method])

    return label


def teacher_of(summaries: Sequence[Summary], run: Summary, teacher: str) -> str:
    shown = one_seed(summaries)
    return teacher if len(shown) == 1 else f"{run.prompts}, {run.method}, {teacher}"


def one_seed(summaries: Sequence[Summary]) -> list[Summary]:
    """The first seed of every method and setting: statistics within responses are not averaged over seeds."""
    first: dict[tuple[str, str, str], Summary] = {}
    for run in summaries:
        first.setdefault((run.student, run.prompts, run.method), run)
    return list(first.values())


def groups_of(summaries: Sequence[Summary], of: Callable[[Summary], dict]) -> list[str]:
    return list(dict.fromkeys(group for run in summaries for group in of(run)))


def teachers_of(summaries: Sequence[Summary]) -> list[str]:
    return list(dict.fromkeys(teacher for run in summaries for teacher in run.teachers))


def percent(values: dict[int, float]) -> str:
    return spread(list(values.values())).percent() if values else NONE


def signed(difference: Spread | None) -> str:
    if difference is None:
        return NONE
    text = difference.percent()
    return text if text.startswith("-") else f"+{text}"


def seeds_note(comparison: Comparison) -> str:
    if comparison.seeds < 2:
        return "One seed: no spread. Train more seeds (seeds=[0, 1, 2]) to know how much of a difference is chance."
    return f"Mean ± standard deviation (n − 1) over up to {comparison.seeds} seeds."
