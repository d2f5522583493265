"""What the tables of analysis share: a titled table, labels of rows, and cells of figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trustmopd.analysis.compare import FULL, Comparison, Setting
from trustmopd.analysis.summary import Summary
from trustmopd.statistics import Spread, spread
from trustmopd.text_tables import TextTable

NONE = "–"


@dataclass(frozen=True)
class Titled:
    """A table, the name of its files, its title, and what a reader must know to read it."""

    name: str
    title: str
    note: str
    table: TextTable


def label_in(comparison: Comparison) -> Callable[..., str]:
    """A method's name, with as much of its setting as tells it from others; without a method, the setting's."""
    students = len({setting.student for setting in comparison.settings}) > 1
    prompts = len({setting.prompts for setting in comparison.settings}) > 1

    def label(where: Setting | Summary, method: str | None = None) -> str:
        setting = [where.student] * students + [where.prompts] * prompts
        return ", ".join([*setting, method] if method else setting or [where.prompts])

    return label


def teacher_in(comparison: Comparison) -> Callable[[Summary, str], str]:
    """A teacher's name, with that of the run where there are several."""
    label, several = label_in(comparison), len(one_seed(comparison)) > 1

    def name(run: Summary, teacher: str) -> str:
        return f"{label(run, run.method)}, {teacher}" if several else teacher

    return name


def one_seed(comparison: Comparison, having: Callable[[Summary], object] = lambda run: True) -> list[Summary]:
    """The first seed of every method and setting that has what is shown: statistics within responses are not averaged
    over seeds."""
    first = (
        next((run for run in seeds.values() if having(run)), None)
        for setting in comparison.settings
        for seeds in setting.methods.values()
    )
    return [run for run in first if run is not None]


def the_trusting(comparison: Comparison) -> list[Summary]:
    """Runs whose allocation is worth showing: one seed of full trust in each setting, or else of any scored rule."""
    first = one_seed(comparison, lambda run: run.allocation and len(run.teachers) > 1)
    return [run for run in first if run.method == FULL] or [run for run in first if run.scores] or first[:1]


def one_seed_note(comparison: Comparison, runs: Sequence[Summary]) -> str:
    """Which seeds are shown, where there are others."""
    seeds = sorted({run.seed for run in runs})
    return f" Of each method one seed ({', '.join(map(str, seeds))})." if comparison.seeds > 1 else ""


def clock_note(comparison: Comparison) -> str:
    """What a difference between two times may be."""
    alone = " One seed: no error bars." if comparison.seeds < 2 else ""
    return f"Seconds are wall-clock time: they include whatever else the machine was doing.{alone}"


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
        return "One seed: no error bars."
    return f"Mean ± standard deviation (n − 1) over up to {comparison.seeds} seeds."
