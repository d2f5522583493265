"""Which runs are one experiment: names that mean two things are told apart before anything is averaged or compared."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trustmopd.analysis.summary import Summary


def told_apart(summaries: Sequence[Summary]) -> list[Summary]:
    """Students or prompt sets of one name that are not the same get a piece of their fingerprint: two files called
    train.jsonl must not become one setting. Within a setting, what a run has other than most, teachers or fields of
    the configuration, is added to the name of its method: it is no further seed of theirs."""
    named = list(summaries)
    for what in ("student", "prompts"):
        meant: dict[str, set[str]] = {}
        for run in named:
            meant.setdefault(getattr(run, what), set()).add(run.fingerprints[what])
        for place, run in enumerate(named):
            if len(meant[name := getattr(run, what)]) > 1:
                change: dict[str, Any] = {what: f"{name} {run.fingerprints[what][:4]}"}
                named[place] = replace(run, **change)
    named = _with_teams(named)
    usual = _by_setting(named, lambda run: _usual([each.team for each in run]))
    settings = _by_setting(named, _usual_settings)
    told = []
    for run in named:
        key = (run.student, run.prompts)
        odd = [f"teachers {run.team}"] if run.team != usual[key] else []
        odd += [
            f"{name} {run.setup[name]}" for name, value in settings[key].items() if run.setup.get(name, value) != value
        ]
        told.append(replace(run, method=", ".join([run.method, *odd])))
    return told


def _with_teams(summaries: Sequence[Summary]) -> list[Summary]:
    """Each run with a name of its teachers: theirs, and a piece of a fingerprint where one name stands for two."""
    teams: list[tuple[str, dict[str, str | None]]] = []  # of a student
    places = []
    for run in summaries:
        known = (
            n for n, (student, team) in enumerate(teams) if student == run.student and _same(team, run.teacher_marks)
        )
        place = next(known, len(teams))
        if place == len(teams):
            teams.append((run.student, {}))
        # A rule may leave teachers unloaded: another run knows what they are.
        teams[place][1].update({n: mark for n, mark in run.teacher_marks.items() if mark or n not in teams[place][1]})
        places.append(place)
    marks: dict[str, set[str | None]] = {}
    for _, team in teams:
        for name, mark in team.items():
            marks.setdefault(name, set()).add(mark)
    titles = [
        " + ".join(f"{name} {str(mark)[:4]}" if len(marks[name]) > 1 else name for name, mark in team.items())
        for _, team in teams
    ]
    return [replace(run, team=titles[place]) for run, place in zip(summaries, places, strict=True)]


def _same(one: Mapping[str, str | None], other: Mapping[str, str | None]) -> bool:
    return set(one) == set(other) and all(None in (one[name], other[name]) or one[name] == other[name] for name in one)


def _by_setting(summaries: Sequence[Summary], of: Callable[[list[Summary]], Any]) -> dict[tuple[str, str], Any]:
    runs: dict[tuple[str, str], list[Summary]] = {}
    for run in summaries:
        runs.setdefault((run.student, run.prompts), []).append(run)
    return {key: of(each) for key, each in runs.items()}


def _usual_settings(runs: list[Summary]) -> dict[str, Any]:
    """Fields that differ, and what most runs have."""
    names = dict.fromkeys(name for run in runs for name in run.setup)
    values = {name: [run.setup[name] for run in runs if name in run.setup] for name in names}
    return {name: _usual(found) for name, found in values.items() if any(value != found[0] for value in found)}


def _usual(values: Sequence[Any]) -> Any:
    """The commonest; of several, the first."""
    counts = Counter(map(repr, values))  # lists and mappings are not hashable
    return max(values, key=lambda value: counts[repr(value)])
