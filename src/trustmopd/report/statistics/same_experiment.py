"""Which runs belong to one experiment. Names that stand for two things are made different before anything is averaged
or compared."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from trustmopd.recipe.rules import TRUST
from trustmopd.report.statistics.summary import Summary

Key = TypeVar("Key", bound=Hashable)


def unambiguous(summaries: Sequence[Summary]) -> list[Summary]:
    """Runs whose names are unambiguous. Different students or prompt sets with the same name get part of their
    fingerprint: two files called train.jsonl must not become one setting. If a run differs from most runs of its
    setting (in its teachers or its `setup`), the difference is added to the name of its method. So is the step at which
    an unfinished run stopped: it is not another seed of the finished ones."""
    runs = list(summaries)
    for what in ("student", "prompts"):
        meant = [(getattr(run, what), run.fingerprints[what]) for run in runs]
        names: dict[Any, Any] = _marked(meant)
        runs = [replace(run, **{what: names[key]}) for run, key in zip(runs, meant, strict=True)]
    runs = _with_teams(runs)
    settings: dict[tuple[str, str], list[Summary]] = {}
    # Trust comes first: in a tie it keeps its plain name, whatever the order of the runs.
    for run in sorted(runs, key=lambda run: (run.method != TRUST, run.seed, run.path)):
        settings.setdefault((run.student, run.prompts), []).append(run)
    keys = [((run.method, ""), *_oddities(run, settings[run.student, run.prompts])) for run in runs]
    methods = _distinct({key: ", ".join(text for text, _ in key) for key in keys})
    return [replace(run, method=methods[key]) for run, key in zip(runs, keys, strict=True)]


def _oddities(run: Summary, setting: Sequence[Summary]) -> Iterator[tuple[str, str]]:
    """In what a run differs from most runs of its setting: what is shown, and what distinguishes 1 from "1"."""
    if run.team != _usual([other.team for other in setting]):
        yield f"teachers {run.team}", ""
    for name in dict.fromkeys(name for other in setting for name in other.setup):
        usual = _usual([other.setup[name] for other in setting if name in other.setup])
        if (value := run.setup.get(name, usual)) != usual:
            yield f"{name} {value}", repr(value)
    if run.stopped:
        yield run.stopped, ""


def _with_teams(summaries: Sequence[Summary]) -> list[Summary]:
    """Each run with a title of its teachers: their names, with part of a fingerprint if one name stands for two."""
    teams: list[tuple[str, dict[str, str | None]]] = []  # of a student
    team_of: list[dict[str, str | None]] = []  # of a run
    for run in summaries:
        known = (team for student, team in teams if student == run.student and _same(team, run.teacher_marks))
        if (team := next(known, None)) is None:
            teams.append((run.student, team := {}))
        # A rule may not load all teachers: their fingerprints come from another run.
        team.update({name: mark for name, mark in run.teacher_marks.items() if mark or name not in team})
        team_of.append(team)
    names = _marked((name, str(mark)) for _, team in teams for name, mark in team.items())
    keys = [tuple((name, str(mark)) for name, mark in team.items()) for team in team_of]
    titles = _distinct({key: " + ".join(names[member] for member in key) for key in keys})
    return [replace(run, team=titles[key]) for run, key in zip(summaries, keys, strict=True)]


def _same(one: Mapping[str, str | None], other: Mapping[str, str | None]) -> bool:
    return set(one) == set(other) and all(None in (one[name], other[name]) or one[name] == other[name] for name in one)


def _marked(meant: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """A text for each (name, fingerprint): the name, with as much of the fingerprint as is needed if several have this
    name."""
    marks: dict[str, set[str]] = {}
    for name, mark in meant:
        marks.setdefault(name, set()).add(mark)
    texts = {}
    for name, all_marks in marks.items():
        long = max(map(len, all_marks))
        digits = next((n for n in range(4, long) if len({mark[:n] for mark in all_marks}) == len(all_marks)), long)
        for mark in sorted(all_marks):
            texts[name, mark] = f"{name} {mark[:digits]}" if len(all_marks) > 1 else name
    return _distinct(texts)


def _distinct(texts: Mapping[Key, str]) -> dict[Key, str]:
    """The texts, numbered if two keys have the same text."""
    distinct: dict[Key, str] = {}
    for key, text in texts.items():
        tries = (text, *(f"{text} ({number})" for number in range(2, len(texts) + 2)))
        distinct[key] = next(attempt for attempt in tries if attempt not in distinct.values())
    return distinct


def _usual(values: Sequence[Any]) -> Any:
    """The most common value; in a tie, the first."""
    counts = Counter(map(repr, values))  # lists and mappings are not hashable
    return max(values, key=lambda value: counts[repr(value)])
