"""The guard: what goes wrong in a run, seen in its metrics while it can still be fixed.

A function of the logged lines alone: training reads each line as it comes, a resumed run those of its checkpoint, and
the report all of them. `docs/symptoms.md` has symptom, cause and remedy of each rule.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import hypot, isfinite
from statistics import mean, stdev
from typing import Any

from trustmopd.util.messages import choose_from

WARN, STOP, OFF = "warn", "stop", "off"
ACTIONS = (WARN, STOP, OFF)


@dataclass(frozen=True)
class Rule:
    """Speaks when `metric`, a pattern, has been too high (`rises`) or too low for `patience` lines in a row: beyond
    `level`, and beyond `times` its mean in the run's first lines, and beyond that mean `plus` so much. What is None
    does not count. Two rows may share a name: a value may be too high, or too low."""

    name: str
    metric: str
    what: str
    remedy: str
    rises: bool = True
    level: float | None = None
    times: float | None = None
    plus: float | None = None
    patience: int = 10

    def limit(self, start: float) -> float:
        """Of a value, in a run that began with `start`."""
        limits = [self.level, self.times and start * self.times, self.plus and start + self.plus]
        known = [limit for limit in limits if limit is not None]
        return max(known) if self.rises else min(known)


_SLOWER, _DRIFTS = "lower learning_rate", "mu no longer describes this teacher"
#: Of a teacher's score, which is 1 on the calibration rollouts if it is calibrated. Outside mu no longer describes it:
#: with gamma = 7, a factor of 1.5 against the other teachers multiplies its share of the weight by 17.
BAND = (1 / 1.5, 1.5)
# Rows as lines, so that thresholds can be compared.
# fmt: off
RULES = (
    Rule("clipped", "completions/clipped_ratio", "responses are cut off", "raise max_completion_length", level=0.1),
    Rule("length", "completions/mean_length", "responses grow", "look for a teacher that does not stop", times=2.0),
    Rule("loss", "loss", "the student moves away from its teachers", _SLOWER, times=3.0),
    Rule("repetition", "completions/repetition", "responses repeat themselves", _SLOWER, level=0.2, plus=0.1),
    Rule("entropy", "entropy", "the student is less and less certain", _SLOWER, level=0.05, times=2.5),
    Rule("entropy", "entropy", "responses become alike", _SLOWER, rises=False, times=0.2),
    Rule("mass", "candidates/student_mass", "too few candidates", "raise num_candidates", rises=False, level=0.95),
    Rule("mass", "teacher_mass/*", "too few candidates", "raise num_candidates", rises=False, level=0.95, patience=2),
    Rule("uncertain", "mu_error/*", "mu is little known", "raise calibration_batches", level=0.05),
    Rule("drift", "score/*", _DRIFTS, "look at its weight, or drop the teacher", times=BAND[1]),
    Rule("drift", "score/*", _DRIFTS, "look at its weight, or drop the teacher", rises=False, times=BAND[0]),
    Rule("late", "position/4/gap", "ends of responses disagree", "find the teacher without this EOS", level=0.5),
    Rule("balance", "domain/*/gradient", "one domain takes over", "sample fewer of its prompts", level=0.9),
    Rule("far", "overlap/*", "this teacher is far away", "warm up: trustmopd sft", rises=False, level=0.6, patience=2),
    Rule("overlap", "overlap/*", "student and teacher part", _SLOWER, rises=False, times=0.75, patience=2),
    Rule("conflict", "conflict/cancelled", "teachers cancel out", "drop one teacher, or route", level=0.4, patience=2),
    Rule("unsolved", "watch/*", "nobody solves these prompts", "try easier ones", rises=False, level=0.02, patience=3),
    Rule("watch", "watch/*", "watched accuracy falls", "keep the best checkpoint", rises=False, plus=-0.2, patience=2),
)
# fmt: on
NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))


@dataclass(frozen=True)
class Alarm:
    """`step` is 0 where nothing was trained."""

    rule: Rule
    metric: str
    step: int
    since: int
    value: float
    start: float
    action: str = WARN

    def __str__(self) -> str:
        way = "above" if self.rule.rises else "below"
        seen = f"{self.metric} is {self.value:.3g}, {way} {self.rule.limit(self.start):.3g}"
        if self.step:
            seen = f"guard, step {self.step}: {seen} since step {self.since} (at first {self.start:.3g})"
        return f"{seen}: {self.rule.what}. To try: {self.rule.remedy}. See docs/symptoms.md#{self.rule.name}"


def actions_of(setting: Any) -> dict[str, str]:
    """Rule → warn, stop or off, from one of them for all rules or a mapping, of which the other rules only warn. YAML
    reads `off` as false."""
    given = setting if isinstance(setting, Mapping) else dict.fromkeys(NAMES, setting)
    for name, action in given.items():
        if name not in NAMES:
            raise ValueError(f"guard: there is no rule {name!r}. {choose_from(NAMES, name)}.")
        if action is not False and action not in ACTIONS:
            field = f"guard.{name}" if isinstance(setting, Mapping) else "guard"
            raise ValueError(f"{field} = {action!r} is unknown. {choose_from(ACTIONS, action)}.")
    return {name: given.get(name, WARN) or OFF for name in NAMES}


@dataclass
class _Watched:
    """One metric under one rule."""

    first: list[float] = field(default_factory=list)
    since: int | None = None
    count: int = 0
    spoken: bool = False


class Guard:
    """Reads lines in order; each rule speaks once of a metric."""

    def __init__(self, setting: Any = WARN):
        actions = actions_of(setting)
        self._rules = [(rule, actions[rule.name]) for rule in RULES if actions[rule.name] != OFF]
        self._watched: dict[tuple[Rule, str], _Watched] = {}

    def read(self, lines: Iterable[Mapping[str, Any]]) -> list[Alarm]:
        return [alarm for line in lines for alarm in self.see(line)]

    def see(self, line: Mapping[str, Any]) -> Iterator[Alarm]:
        """One logged line, with its `step`."""
        for rule, action in self._rules:
            for metric in (name for name in line if fnmatchcase(name, rule.metric)):
                value, watched = line[metric], self._watched.setdefault((rule, metric), _Watched())
                if not isinstance(value, int | float) or not isfinite(value):
                    continue
                if len(watched.first) < max(1, rule.patience // 2):
                    watched.first.append(value)
                start = mean(watched.first)
                limit = rule.limit(start)
                if not (value > limit if rule.rises else value < limit):
                    watched.since, watched.count = None, 0
                    continue
                watched.since = line["step"] if watched.since is None else watched.since
                watched.count += 1
                if watched.count >= rule.patience and not watched.spoken:
                    watched.spoken = True
                    yield Alarm(rule, metric, line["step"], watched.since, value, start, action)


def unsettled(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """What still moved when the run ended: the loss, and watched accuracy."""
    lines = [*lines]
    said = []
    for metric in sorted({"loss", *(name for line in lines for name in line if name.startswith("watch/"))}):
        if moved := still_moving([line[metric] for line in lines if metric in line]):
            said.append(
                f"{metric} still moved at the end, from {moved[0]:.3g} to {moved[1]:.3g} (means of the third and the "
                "last quarter of the steps): a comparison of rules is not settled. Train longer, or raise "
                "learning_rate."
            )
    return said


def still_moving(values: list[float]) -> tuple[float, float] | None:
    """Means of the third and the last quarter of a series, if they differ by more than a twentieth and by more than
    chance; None if it has settled, or has fewer than eight values."""
    quarter = len(values) // 4
    if quarter < 2 or not all(map(isfinite, values)):
        return None
    third, last = values[-2 * quarter : -quarter], values[-quarter:]
    before, after = mean(third), mean(last)
    chance = 2 * hypot(stdev(third), stdev(last)) / quarter**0.5
    return (before, after) if abs(after - before) > max(chance, abs(before) / 20) else None
