"""Which runs belong to one experiment. Names that stand for two things are made different before anything is averaged
or compared."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from trustmopd.recipe.rules import TRUST
from trustmopd.report.statistics.summary import Summary


def unambiguous(summaries: Sequence[Summary]) -> list[Summary]:
    """Runs whose names are unambiguous. Different students, prompt sets or teachers with the same name get part of
    their fingerprint: two files called train.jsonl must not become one setting. If a run differs from most runs of its
    setting (in its teachers, its `setup` or where they were placed), the difference is added to the name of its method.
    So is the step at which an unfinished run stopped: it is not another seed of the finished ones."""
    students = _Names((run.student, run.fingerprints["student"]) for run in summaries)
    prompts = _Names((run.prompts, run.fingerprints["prompts"]) for run in summaries)
    teachers = _Names(item for run in summaries for item in run.teacher_marks.items())
    runs = [
        replace(
            run,
            student=students.of(run.student, run.fingerprints["student"]),
            prompts=prompts.of(run.prompts, run.fingerprints["prompts"]),
            team=" + ".join(teachers.of(*item) for item in run.teacher_marks.items()),
        )
        for run in summaries
    ]
    settings: dict[tuple[str, str], list[Summary]] = {}
    # Trust comes first: in a tie it keeps its plain name, whatever the order of the runs.
    for run in sorted(runs, key=lambda run: (run.method != TRUST, run.seed, run.path)):
        settings.setdefault((run.student, run.prompts), []).append(run)
    oddities = [_oddities(run, settings[run.student, run.prompts]) for run in runs]
    return [replace(run, method=", ".join([run.method, *odd])) for run, odd in zip(runs, oddities, strict=True)]


class _Names:
    """Names of things with fingerprints (None if unknown): a name that several have is followed by six digits."""

    def __init__(self, meant: Iterable[tuple[str, str | None]]) -> None:
        self.marks: dict[str, set[str]] = {}
        for name, mark in meant:
            self.marks.setdefault(name, set()).update([mark] if mark else [])

    def of(self, name: str, mark: str | None) -> str:
        return f"{name} {mark[:6]}" if mark and len(self.marks[name]) > 1 else name


def _oddities(run: Summary, setting: Sequence[Summary]) -> Iterator[str]:
    """In what a run differs from most runs of its setting."""
    facts = [{"teachers": other.team, "placement": other.placement, **other.setup} for other in (run, *setting)]
    own, *others = facts
    for name in dict.fromkeys(name for other in others for name in other):
        usual = _usual([other[name] for other in others if name in other])
        if (value := own.get(name, usual)) != usual:
            yield f"{name} {value}"
    if run.stopped:
        yield run.stopped


def _usual(values: Sequence[Any]) -> Any:
    """The most common value; in a tie, the first."""
    return max(values, key=values.count)
