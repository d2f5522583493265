"""Which runs belong to one experiment. Names that stand for two things are made different before anything is averaged
or compared."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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
    named = list(summaries)
    for what in ("student", "prompts"):
        meant = [(getattr(run, what), run.fingerprints[what]) for run in named]
        names: dict[Any, Any] = _marked(meant)
        named = [replace(run, **{what: names[key]}) for run, key in zip(named, meant, strict=True)]
    named = _with_teams(named)
    usual = _by_setting(named, lambda runs: _usual([run.team for run in runs]))
    settings = _by_setting(named, _usual_settings)
    keys: list[tuple[tuple[str, str], ...]] = []  # what is shown, and what distinguishes 1 from "1"
    for run in named:
        where = (run.student, run.prompts)
        odd = [(f"teachers {run.team}", "")] if run.team != usual[where] else []
        odd += [
            (f"{name} {run.setup[name]}", repr(run.setup[name]))
            for name, value in settings[where].items()
            if run.setup.get(name, value) != value
        ]
        odd += [(run.stopped, "")] if run.stopped else []
        keys.append(((run.method, ""), *odd))
    methods = _distinct({key: ", ".join(text for text, _ in key) for key in keys})
    return [replace(run, method=methods[key]) for run, key in zip(named, keys, strict=True)]


def _with_teams(summaries: Sequence[Summary]) -> list[Summary]:
    """Each run with a title of its teachers: their names, with part of a fingerprint if one name stands for two."""
    teams: list[tuple[str, dict[str, str | None]]] = []  # of a student
    places = []
    for run in summaries:
        known = (
            n for n, (student, team) in enumerate(teams) if student == run.student and _same(team, run.teacher_marks)
        )
        place = next(known, len(teams))
        if place == len(teams):
            teams.append((run.student, {}))
        # A rule may not load all teachers: their fingerprints come from another run.
        teams[place][1].update({n: mark for n, mark in run.teacher_marks.items() if mark or n not in teams[place][1]})
        places.append(place)
    names = _marked((name, str(mark)) for _, team in teams for name, mark in team.items())
    marked = [tuple((name, str(mark)) for name, mark in team.items()) for _, team in teams]
    titles = _distinct({team: " + ".join(names[member] for member in team) for team in marked})
    return [replace(run, team=titles[marked[place]]) for run, place in zip(summaries, places, strict=True)]


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
    given: dict[Key, str] = {}
    for key, text in texts.items():
        tries = (text, *(f"{text} ({number})" for number in range(2, len(texts) + 2)))
        given[key] = next(each for each in tries if each not in given.values())
    return given


def _by_setting(summaries: Sequence[Summary], of: Callable[[list[Summary]], Any]) -> dict[tuple[str, str], Any]:
    """What `of` returns for the runs of each setting. Trust comes first: in a tie it keeps its plain name, whatever the
    order of the runs."""
    runs: dict[tuple[str, str], list[Summary]] = {}
    for run in sorted(summaries, key=lambda run: (run.method != TRUST, run.seed, run.path)):
        runs.setdefault((run.student, run.prompts), []).append(run)
    return {key: of(each) for key, each in runs.items()}


def _usual_settings(runs: list[Summary]) -> dict[str, Any]:
    """The fields that differ between runs, with their most common values."""
    names = dict.fromkeys(name for run in runs for name in run.setup)
    values = {name: [run.setup[name] for run in runs if name in run.setup] for name in names}
    return {name: _usual(found) for name, found in values.items() if any(value != found[0] for value in found)}


def _usual(values: Sequence[Any]) -> Any:
    """The most common value; in a tie, the first."""
    counts = Counter(map(repr, values))  # lists and mappings are not hashable
    return max(values, key=lambda value: counts[repr(value)])
