"""Several runs side by side, by setting (student and prompts), method and seed. Differences are paired by seed. Names
that stand for two things are made different before anything is averaged or compared."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from trustmopd.recipe.rules import DISPLACEMENT, RULES, SCORES, TRUST
from trustmopd.report.readers.run import Certainty, over_seeds
from trustmopd.report.statistics.summary import Summary
from trustmopd.runs.layout import INITIAL, ROUTED, is_reference_row
from trustmopd.util.stats import Spread, paired_difference, recovery, spread

UNIFORM = "uniform"
ABLATIONS = (*(score.title for score in SCORES.values() if score.name != DISPLACEMENT), "without μ", "response-level")
_SCORED = [name for name, rule in RULES.items() if rule.scored]
_ORDER = ("routed", *(name for name in RULES if name not in ("routed", *_SCORED)), *_SCORED, *ABLATIONS, "γ")


@dataclass(frozen=True)
class Setting:
    """Runs that may be compared: the same student and the same prompts. `methods` maps a method to its seeds."""

    student: str
    prompts: str
    methods: dict[str, dict[int, Summary]] = field(default_factory=dict)

    @property
    def runs(self) -> list[Summary]:
        return [run for seeds in self.methods.values() for run in seeds.values()]

    def overall(self, method: str) -> dict[int, float]:
        return self.score(method, "overall")

    def score(self, method: str, column: str) -> dict[int, float]:
        runs = self.methods.get(method, {})
        return {seed: run.own_scores[column] for seed, run in runs.items() if column in run.own_scores}

    def ahead(self, method: str, of: str) -> Spread | None:
        """Overall score of `method` minus that `of` another, paired by seed; None if they share no seed."""
        return paired_difference(self.overall(method), self.overall(of))

    def certainty(self, method: str) -> Certainty:
        return over_seeds([run.certainty for run in self.methods.get(method, {}).values() if run.own_scores])

    def average(self, method: str, value: Callable[[Summary], float | None]) -> Spread | None:
        values = [found for run in self.methods.get(method, {}).values() if (found := value(run)) is not None]
        return spread(values) if values else None

    def gammas(self) -> dict[float, str]:
        """Methods that differ from trust only in gamma, by gamma."""
        names = [name for name in self.methods if name == TRUST or (name.startswith("γ = ") and "," not in name)]
        return dict(sorted((next(iter(self.methods[name].values())).gamma, name) for name in names))


@dataclass(frozen=True)
class Comparison:
    """`runs` has all runs, including those left out of the settings, which `warnings` names."""

    runs: list[Summary]
    settings: list[Setting] = field(default_factory=list)
    #: Student and teachers → reference row → scores.
    references: dict[tuple[str, str], dict[str, dict[str, float]]] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def seeds(self) -> int:
        return max((len(runs) for setting in self.settings for runs in setting.methods.values()), default=0)

    @property
    def seeds_note(self) -> str:
        """A note for every mean over seeds."""
        if self.seeds < 2:
            return "One seed: no error bars."
        return f"Mean ± standard deviation (n − 1) over up to {self.seeds} seeds."

    def label(self, where: Setting | Summary, method: str | None = None) -> str:
        """A method's name, with as much of its setting as is needed to identify it; without a method, the setting's
        name."""
        students, prompts = ({getattr(each, what) for each in self.settings} for what in ("student", "prompts"))
        setting = [where.student] * (len(students) > 1) + [where.prompts] * (len(prompts) > 1)
        return ", ".join([*setting, method] if method else setting or [where.prompts])

    def one_seed(self, having: Callable[[Summary], object] = lambda run: True) -> list[Summary]:
        """The first run of every method and setting for which `having` is true: statistics within responses are not
        averaged over seeds."""
        methods = (seeds for setting in self.settings for seeds in setting.methods.values())
        first = (next(filter(having, seeds.values()), None) for seeds in methods)
        return [run for run in first if run is not None]

    def trusting(self) -> list[Summary]:
        """Runs whose allocation is worth showing: one seed of trust in each setting, otherwise of any scored rule."""
        first = self.one_seed(lambda run: run.allocation and len(run.teachers) > 1)
        return [run for run in first if run.method == TRUST] or [run for run in first if run.scores] or first[:1]

    def gains(self, setting: Setting, method: str) -> dict[int, float]:
        """Overall score minus the initial student's, by seed."""
        return {seed: score - low for seed, (score, low, _) in self._ends(setting, method).items() if low is not None}

    def recovered(self, setting: Setting, method: str) -> dict[int, float]:
        """The share of the gap to the routed teachers, by seed; empty if there is no gap."""
        return {
            seed: recovery(score, low, high)
            for seed, (score, low, high) in self._ends(setting, method).items()
            if low is not None and high is not None and low != high
        }

    def _ends(self, setting: Setting, method: str) -> dict[int, tuple[float, float | None, float | None]]:
        """Overall score, and those of the initial student and the routed teachers: from the run's own evaluation,
        otherwise from one with the same student and teachers."""
        found = {}
        for seed, score in setting.overall(method).items():
            run = setting.methods[method][seed]
            known = {**self.references.get((run.student, run.team), {}), **run.evaluation}
            low, high = (known.get(name, {}).get("overall") for name in (INITIAL, ROUTED))
            found[seed] = (score, low, high)
        return found


def compare(summaries: Iterable[Summary]) -> Comparison:
    found = Comparison(unambiguous(list(summaries)))
    settings: dict[tuple[str, str], Setting] = {}
    first_with: dict[tuple[str, str, str], str] = {}
    columns: dict[str, None] = {}
    for run in found.runs:
        setting = settings.setdefault((run.student, run.prompts), Setting(run.student, run.prompts))
        seeds = setting.methods.setdefault(run.method, {})
        if run.seed in seeds:
            found.warnings.append(
                f"{run.path} has the method, prompts and seed of {seeds[run.seed].path}, and is left out of the "
                "comparison. Train it with another seed, or compare one of the two."
            )
            continue
        seeds[run.seed] = run
        known = found.references.setdefault((run.student, run.team), {})
        for name, row in run.evaluation.items():
            if is_reference_row(name):
                other = first_with.setdefault((run.student, run.team, name), run.path)
                if known.setdefault(name, row) != row:
                    found.warnings.append(
                        f"{run.path} and {other} give '{name}' different scores, with the same student and teachers. "
                        "Each run's recovery is by its own; evaluate both on the same benchmarks and samples."
                    )
        for row in (run.own_scores, *known.values()):
            columns |= dict.fromkeys([t for t in run.teachers if t in row])
            columns |= dict.fromkeys([name for name in row if name not in ("overall", "recovery")])
    found.columns.extend(columns)
    for setting in settings.values():
        methods = dict(sorted(setting.methods.items(), key=lambda item: _place(item[0])))
        found.settings.append(Setting(setting.student, setting.prompts, methods))
    return found


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
        values = [other[name] for other in others if name in other]
        usual = max(values, key=values.count)  # the most common; in a tie, the first
        if (value := own.get(name, usual)) != usual:
            yield f"{name} {value}"
    if run.stopped:
        yield run.stopped


def united(lists: Iterable[Iterable[str]]) -> list[str]:
    """Every name once, in order of first appearance."""
    return list(dict.fromkeys(name for names in lists for name in names))


def _place(method: str) -> tuple[int, str]:
    plain = method.split(", ")[0]
    named = [place for place, name in enumerate(_ORDER) if name in (plain, plain.split(" ")[0])]
    return (*named, len(_ORDER))[0], method
