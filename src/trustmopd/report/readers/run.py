"""A run, read for a report: its scores, how far it got, its method and its models. And how runs are found."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from trustmopd.recipe.rules import DEFAULTS, FLAT, PARTS, RULES, part_of
from trustmopd.recipe.teacher_source import place_named
from trustmopd.report.readers.contents import Contents
from trustmopd.report.readers.token_records import TokenRecords, read_records
from trustmopd.runs import RunDirectory, newest_checkpoint
from trustmopd.runs.layout import CALIBRATION, CHECKPOINT, INITIAL, MANIFEST, METRICS, RECORDS, SEED, is_reference_row
from trustmopd.runs.schemas import ASKED_WITH

Interval = tuple[float, float]
#: The gain over the initial student, beside the columns of a row.
GAIN = "gain"


@dataclass(frozen=True)
class Certainty:
    """`prompts` is 0 if their number is not recorded. An interval is None if some resamples have no value: without a
    gap there is no recovery."""

    prompts: int = 0
    intervals: dict[str, Interval | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """What some teachers are measured from: the end of its path, and a piece of its fingerprint."""

    name: str
    mark: str
    teachers: list[str]

    def __str__(self) -> str:
        return f"{self.name} {self.mark}"


class Run(Contents):
    """What follows from the files of a run. Contradictions between them are noted in `missing`, too."""

    @cached_property
    def _models(self) -> dict[str, Any]:
        return self.manifest.get("models", {})

    @cached_property
    def evaluation(self) -> dict[str, dict[str, float]]:
        """The rows of scores: method → domain scores, overall, recovery. Only numbers are kept."""
        newest = newest_checkpoint(self.path)
        for row in self._rows.values():
            if newest and row.get("checkpoint") not in (None, newest.name):
                how = "Evaluate again with `trustmopd evaluate RECIPE`; it says which folder to remove."
                self._note(f"The scores are of {row['checkpoint']}, but the run now has {newest.name}.", how)
        for name, row in self._rows.items():
            for benchmark, facts in row["benchmarks"].items():
                if (count := facts.get("no_answer", 0)) * 2 >= facts.get("responses", 1):
                    how = "Look at the responses: the prompts may not ask for the form that the grader reads."
                    what = f"no answer was found in {count:g} of {facts['responses']:g} responses"
                    self._note(f"{name}, {benchmark}: {what}.", how)
        return {
            name: {column: value for column, value in row.items() if type(value) in (int, float)}
            for name, row in self._rows.items()
        }

    @cached_property
    def _own_row(self) -> str:
        """The student's row: the only one that is not a reference row, or the one named after the run."""
        rows = [name for name in self.evaluation if not is_reference_row(name)]
        names = (self.recipe.get("name"), self.path.name, self.config.get("allocation"), "student")
        known = rows if len(rows) == 1 else [name for name in names if name in rows]
        if rows and not known:
            self._note(f"{self._files.scores.name} has {len(rows)} rows, and none is named after this run.")
        return known[0] if known else ""

    @property
    def own_scores(self) -> dict[str, float]:
        return self.evaluation.get(self._own_row, {})

    @property
    def certainty(self) -> Certainty:
        """Of the student's own scores."""
        return certainty_of(self._rows.get(self._own_row, {}))

    @cached_property
    def logged_steps(self) -> list[dict[str, float]]:
        """The lines with means over steps, one for every `logging_steps` steps."""
        return [line for line in self.logged if "loss" in line]

    @property
    def last_step(self) -> int:
        """By the last line of any kind: if `logging_steps` does not divide the number of steps, the last ones have no
        line of their own."""
        return int(self.logged[-1]["step"]) if self.logged else 0

    @property
    def max_steps(self) -> int:
        """As planned when training began, also if set by epochs; 0 if the manifest is damaged."""
        return int(self.manifest.get("planned_steps", 0))

    @property
    def finished(self) -> bool:
        return bool(self.logged) and self.last_step >= self.max_steps

    @cached_property
    def teachers(self) -> list[str]:
        return list(self._models.get("teachers", {})) or list(self.calibration.get("mu", {}))

    @cached_property
    def mu(self) -> dict[str, float]:
        """For every teacher, or for none: if only some scores were divided by mu, they could not be compared."""
        mu = self.calibration.get("mu", {}) if self.config.get("calibrated", True) else {}
        if not mu or set(mu) == set(self.teachers):
            return mu
        self._note(
            f"{CALIBRATION} has mu of {', '.join(mu)}, but the run's teachers are {', '.join(self.teachers)}: scores "
            "are shown raw.",
            "Restore the file that the run was trained with.",
        )
        return {}

    @property
    def gamma(self) -> float:
        return float(self.config.get("gamma", 7.0))

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def method(self) -> str:
        return method_name(self.config)

    @property
    def title(self) -> str:
        name = str(self.recipe.get("name") or self.path.resolve().name)
        return name if self.method in name.replace("-", " ") else f"{name}, {self.method}"

    @property
    def student(self) -> str:
        return Path(str(self._models.get("student", {}).get("source", "student"))).name

    @property
    def prompts(self) -> str:
        """A short name of the prompt set: from its path if a recipe gives one, otherwise from its fingerprint."""
        if self._prompt_path is not None:
            return Path(self._prompt_path).stem
        return f"prompts {str(self.manifest.get('prompts', {}).get('fingerprint', 'unknown'))[:6]}"

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the student and the prompts."""
        named = {"student": self._models.get("student", {}), "prompts": self.manifest.get("prompts", {})}
        return {what: str(each.get("fingerprint")) for what, each in named.items()}

    @property
    def teacher_marks(self) -> dict[str, str | None]:
        """Fingerprints of the teachers, and of what they read if it is not the student's prompts; None for a teacher
        that the rule did not load."""
        named = self._models.get("teachers", {})
        return {name: _mark(named.get(name) or {}) for name in self.teachers}

    @cached_property
    def references(self) -> list[Reference]:
        """The distinct references that were asked."""
        common, own = self._models.get("reference"), self._models.get("own_references", {})
        references: dict[str, Reference] = {}
        for teacher in self.teachers:
            if model := own.get(teacher) or common:
                mark, name = str(_mark(model)), "/".join(Path(str(model.get("source"))).parts[-2:])
                references.setdefault(mark, Reference(name, mark[:8], [])).teachers.append(teacher)
        return list(references.values())

    @cached_property
    def setup(self) -> dict[str, Any]:
        """What makes two runs of one method two experiments: settings, the reference if there is one, and which weights
        of the student were trained (all of them, or an adapter)."""
        if self.manifest and "experiment" not in self.manifest:
            what = f"{MANIFEST} does not list the settings of the experiment, so runs are distinguished only by method."
            self._note(what, "Manifests of new runs list them.")
        settings = settings_that_count(self.config, self.manifest.get("experiment", ()))
        several = len(self.references) > 1
        marks = [f"{ref.mark} of {', '.join(ref.teachers)}" if several else ref.mark for ref in self.references]
        student = self._models.get("student", {})
        trained = {name: student.get(name) for name in ("trainable_parameters", "adapter")}
        ingredients = {"reference": "; ".join(marks) or None, **trained}
        scored: dict[str, Any] = next(iter(self._rows.get(self._own_row, {}).get("benchmarks", {}).values()), {})
        asked_with = {f"evaluation.{name}": scored[name] for name in ASKED_WITH if name in scored}
        return settings | {name: value for name, value in ingredients.items() if value is not None} | asked_with

    @property
    def placement(self) -> str:
        """Where the frozen models lived; in brackets, teachers to which the recipe gives another place. It changes the
        cost of a run, not what is learnt."""
        common, teachers = str(self.config.get("teacher_placement", "resident")), self.recipe.get("teachers")
        places = {
            name: str(place_named(source.get("on")) or common)
            for name, source in (teachers.items() if isinstance(teachers, dict) else ())
            if isinstance(source, dict)
        }
        own = [f"{name} {on}" for name, on in places.items() if on != common]
        return f"{common} ({', '.join(own)})" if own else common

    def records(self, *, candidates: bool = False) -> TokenRecords:
        return read_records(self.path, self.teachers, candidates=candidates)


def _mark(model: Mapping[str, Any]) -> str | None:
    mark, view = model.get("fingerprint"), model.get("view")
    return f"{mark} {view}" if mark and view else mark


def method_name(config: Mapping[str, Any]) -> str:
    """The rule's title and what differs from the paper's settings; for trust itself, only what differs."""
    if "allocation" not in config:
        return "unknown rule"
    rule, *others = (part_of(config, part) for part in PARTS)
    own = rule.rule not in RULES  # its parameters are the user's matter
    differing = [other.label() for other in others if other.rule not in DEFAULTS.values() or other.changed()]
    return ", ".join([rule.rule if own else rule.label(), *differing])


def settings_that_count(config: Mapping[str, Any], listed: Iterable[str]) -> dict[str, Any]:
    """Of the settings that training `listed`: those that the rule uses and that are not part of the method's name."""
    rule = part_of(config, "allocation")
    aside = {*PARTS, *FLAT.values(), *(() if rule.rule == "routed" else ("domain_column",))}
    if not getattr(rule, "calibrated", False):
        aside.add("calibration_batches")
    # The name of a user's own rule says nothing of its settings.
    own = {} if rule.rule in RULES else {name: value for name, value in rule.model_dump().items() if name != "rule"}
    return {name: config[name] for name in listed if name in config and name not in aside} | own


def open_run(path: str | Path) -> Run:
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder. Give the run directory that `trustmopd train` made.")
    if not RunDirectory(path).exists():
        raise ValueError(
            f"{path} is not a run directory: it has none of {MANIFEST}, {METRICS}, {CALIBRATION} and {RECORDS}/. "
            f"Give the folder that `trustmopd train` made (its recipe's `output`, or a {SEED}* folder below it)."
        )
    return Run(path)


def find_runs(paths: Iterable[str | Path]) -> list[Run]:
    """The runs at `paths`. A folder that is not a run stands for all runs below it."""
    runs: dict[Path, Run] = {}
    for path in map(Path, paths):
        folders = [path]
        if path.is_dir() and not RunDirectory(path).exists():
            manifests = (file.relative_to(path) for file in path.rglob(MANIFEST))
            below = (file.parent for file in manifests if not any(part.startswith(CHECKPOINT) for part in file.parts))
            folders = sorted(path / folder for folder in below)
            if not folders:
                raise ValueError(f"there is no run in {path}. Give folders that `trustmopd train` made.")
        for folder in folders:
            runs.setdefault(folder.resolve(), open_run(folder))
    return list(runs.values())


def certainty_of(row: Mapping[str, Any]) -> Certainty:
    """Of a row of scores; unknown for an empty row."""
    intervals = {column: _pair(interval) for column, interval in row.get("interval", {}).items()}
    if (difference := row.get("difference") or {}).get("against") == INITIAL:
        intervals[GAIN] = _pair(difference["interval"])
    return Certainty(int(sum(asked["prompts"] for asked in row.get("benchmarks", {}).values())), intervals)


def _pair(interval: Sequence[float] | None) -> Interval | None:
    return None if interval is None else (interval[0], interval[1])


def over_seeds(every: Sequence[Certainty]) -> Certainty:
    """Of a mean over seeds that were scored on the same prompts: the mean of their intervals, which is at least as wide
    as the interval of the mean."""
    if not every:
        return Certainty()
    intervals: dict[str, Interval | None] = {}
    for column in every[0].intervals:
        if all(column in each.intervals for each in every):
            ends = [end for each in every if (end := each.intervals[column]) is not None]
            whole = len(ends) == len(every)
            intervals[column] = (fmean(low for low, _ in ends), fmean(high for _, high in ends)) if whole else None
    return Certainty(min(each.prompts for each in every), intervals)
