"""Several runs side by side, by setting (student and prompts), method and seed. Differences are paired by seed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from trustmopd.analysis.readers.run import Missing, is_reference_row
from trustmopd.analysis.statistics.certainty import Certainty, over_seeds
from trustmopd.analysis.statistics.summary import Summary
from trustmopd.rules import DISPLACEMENT, SCORES, TRUST, UNSCORED
from trustmopd.statistics import Spread, paired_difference, recovery, spread

Made = TypeVar("Made")
FULL, UNIFORM = TRUST, "uniform"
ABLATIONS = (*(score.title for score in SCORES.values() if score.name != DISPLACEMENT), "without μ", "response-level")
_ORDER = ("routed", *(name for name in UNSCORED if name != "routed"), FULL, *ABLATIONS, "γ")


@dataclass(frozen=True)
class Setting:
    """Runs that may be compared: the same student and the same prompts. `methods` maps a method to its seeds."""

    student: str
    prompts: str
    methods: dict[str, dict[int, Summary]] = field(default_factory=dict)

    def overall(self, method: str) -> dict[int, float]:
        return self.score(method, "overall")

    def score(self, method: str, column: str) -> dict[int, float]:
        runs = self.methods.get(method, {})
        return {seed: run.own_scores[column] for seed, run in runs.items() if column in run.own_scores}

    def ahead(self, method: str, of: str) -> Spread | None:
        """Overall score of `method` minus that `of` another, paired by seed; None where they share no seed."""
        return paired_difference(self.overall(method), self.overall(of))

    def certainty(self, method: str) -> Certainty:
        return over_seeds([run.certainty for run in self.methods.get(method, {}).values() if run.own_scores])

    def average(self, method: str, value: Callable[[Summary], float | None]) -> Spread | None:
        values = [found for run in self.methods.get(method, {}).values() if (found := value(run)) is not None]
        return spread(values) if values else None

    def gammas(self) -> dict[float, str]:
        """Methods that differ from the full one in gamma alone, by gamma."""
        names = [name for name in self.methods if name == FULL or (name.startswith("γ = ") and "," not in name)]
        return dict(sorted((next(iter(self.methods[name].values())).gamma, name) for name in names))


@dataclass(frozen=True)
class Comparison:
    settings: list[Setting]
    references: dict[tuple[str, str], dict[str, dict[str, float]]]  # student and teachers → reference row → scores
    columns: list[str]
    warnings: list[str]
    missing: list[Missing] = field(default_factory=list)

    def attempt(self, what: str, make: Callable[[], Made | None]) -> Made | None:
        """A table or figure that cannot be made is said, and the others are made. A disk that is full is no such
        case."""
        try:
            return make()
        except OSError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self.missing.append(Missing(f"The {what} could not be made from these files ({reason:.120}).", ""))
            return None

    @property
    def seeds(self) -> int:
        return max((len(runs) for setting in self.settings for runs in setting.methods.values()), default=0)

    def gains(self, setting: Setting, method: str) -> dict[int, float]:
        """Overall score minus the initial student's, by seed."""
        return {seed: score - low for seed, (score, low, _) in self._ends(setting, method).items() if low is not None}

    def recovered(self, setting: Setting, method: str) -> dict[int, float]:
        """The share of the way to the routed teachers, by seed; nothing where there is no way to go."""
        return {
            seed: recovery(score, low, high)
            for seed, (score, low, high) in self._ends(setting, method).items()
            if low is not None and high is not None and low != high
        }

    def no_recovery(self, setting: Setting, method: str) -> str:
        """Why a method with scores has no recovery, in a clause."""
        for _, low, high in self._ends(setting, method).values():
            if low is None:
                return "the initial student was not scored"
            if high is None:
                named = " and ".join(f"'{column}'" for column in self.columns)
                return f"not every domain ({named}) has a teacher of its name that was scored"
            if low == high:
                return "its teachers, each in its own domain, score what it started with"
        return "nothing was scored"

    def _ends(self, setting: Setting, method: str) -> dict[int, tuple[float, float | None, float | None]]:
        """Overall score, and those of the initial student and the routed teachers: of the run's own evaluation, or
        else of one with the same student and teachers."""
        found = {}
        for seed, score in setting.overall(method).items():
            run = setting.methods[method][seed]
            known = {**self.references.get((run.student, run.team), {}), **run.evaluation}
            low, high = (known.get(name, {}).get("overall") for name in ("initial", "routed-teachers"))
            found[seed] = (score, low, high)
        return found


def compare(summaries: Iterable[Summary]) -> Comparison:
    settings: dict[tuple[str, str], Setting] = {}
    references: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    found_in: dict[tuple[str, str, str], str] = {}
    columns: dict[str, None] = {}
    warnings: list[str] = []
    for run in summaries:
        setting = settings.setdefault((run.student, run.prompts), Setting(run.student, run.prompts))
        seeds = setting.methods.setdefault(run.method, {})
        if run.seed in seeds:
            warnings.append(
                f"{run.path} has the method, prompts and seed of {seeds[run.seed].path}, and is left out of the "
                "comparison. Train it with another seed, or compare one of the two."
            )
            continue
        seeds[run.seed] = run
        known = references.setdefault((run.student, run.team), {})
        for name, row in run.evaluation.items():
            if is_reference_row(name):
                place = found_in.setdefault((run.student, run.team, name), run.path)
                if known.setdefault(name, row) != row:
                    warnings.append(
                        f"{run.path} and {place} give '{name}' different scores, with the same student and teachers. "
                        "Each run's recovery is by its own; evaluate both on the same benchmarks and samples."
                    )
        for row in (run.own_scores, *known.values()):
            columns |= dict.fromkeys([t for t in run.teachers if t in row])
            columns |= dict.fromkeys([name for name in row if name not in ("overall", "recovery")])
    for setting in settings.values():
        ordered = sorted(setting.methods.items(), key=lambda item: _place(item[0]))
        setting.methods.clear()
        setting.methods.update(ordered)
    return Comparison(list(settings.values()), references, list(columns), warnings)


def differences(setting: Setting, methods: Sequence[str], of: str) -> dict[str, Spread]:
    found = {method: setting.ahead(method, of) for method in methods if method in setting.methods}
    return {method: difference for method, difference in found.items() if difference is not None}


def _place(method: str) -> tuple[int, str]:
    plain = method.split(", ")[0]
    for place, name in enumerate(_ORDER):
        if plain == name or plain.split(" ")[0] == name:
            return place, method
    return len(_ORDER), method
