"""The parts of the objective by name, with their parameters: scores, allocation rules, targets, emphases. No torch.

Everything that lists, prints, checks or compares them reads these tables. A new rule is a class here, whose fields are
its parameters, a function of its name in `training/step/allocation.py`, and its test. A new score is a row here, a
function in `method/objective.SCORES`, and its test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field

from trustmopd.recipe.sections import Section, Text
from trustmopd.util.messages import choose_from


@dataclass(frozen=True)
class Score:
    """`compares` candidates: on a single one it is always 0."""

    name: str
    title: str
    needs_reference: bool = False
    compares: bool = True


SCORES = {
    score.name: score
    for score in (
        Score("displacement", "displacement", needs_reference=True),
        Score("likelihood", "likelihood", compares=False),
        Score("negative_entropy", "negative entropy"),
        Score("teacher_student_kl", "teacher–student KL"),
    )
}
DISPLACEMENT = SCORES["displacement"].name


def _known_score(name: str) -> str:
    if name not in SCORES:
        raise ValueError(f"there is no such score. {choose_from(SCORES, name)}.")
    return name


class Variant(Section):
    """One choice of one part: `rule` says which, the other fields are its parameters. `title` names it in tables."""

    title: ClassVar[str]
    rule: str

    def changed(self) -> dict[str, Any]:
        """The parameters that differ from their defaults."""
        optional = [name for name, field in type(self).model_fields.items() if not field.is_required()]
        return {
            name: getattr(self, name)
            for name in optional
            if name != "rule" and getattr(self, name) != type(self).model_fields[name].default
        }

    def label(self) -> str:
        """Its title with what differs from its defaults, as in the paper's tables."""
        differing = self.changed()
        known = [_IN_WORDS[name](differing.pop(name)) for name in _IN_WORDS if name in differing]
        words = [*known, *(f"{name} = {value}" for name, value in differing.items())]
        title = self.title.format(**self.model_dump())
        return ", ".join(words if words and self.rule == TRUST else [title, *words])


#: Parameters that have a name in the paper's tables, in the tables' order.
_IN_WORDS = {
    "score": lambda name: SCORES[name].title if name in SCORES else str(name),
    "calibrated": lambda _: "without μ",
    "granularity": lambda level: f"{level}-level",
    "gamma": lambda gamma: f"γ = {float(gamma):.12g}",
}


class Allocation(Variant):
    """How supervision is shared among the teachers. `phrase` says in a model card what the student is pulled towards;
    `scored` rules look at scores."""

    phrase: ClassVar[str]
    scored: ClassVar[bool] = False


class Scored(Allocation):
    """A rule that weights teachers by their scores."""

    scored = True
    score: Annotated[str, AfterValidator(_known_score), Field(description=f"The paper's own is {DISPLACEMENT}.")] = (
        DISPLACEMENT
    )
    granularity: Annotated[Literal["token", "response"], Field(description="The paper's own is token.")] = "token"
    calibrated: Annotated[bool, Field(description="Write true, or false for raw scores.")] = True


class Trust(Scored):
    title = "trust"
    phrase = "towards the geometric mean of its teachers, each weighted {how}"
    rule: Literal["trust"] = "trust"
    gamma: Annotated[float, Field(gt=0, description="The paper uses 7; for equal weights write rule: uniform.")] = 7.0


class Uniform(Allocation):
    title = "uniform"
    phrase = "towards the geometric mean of its teachers, with equal weights"
    rule: Literal["uniform"] = "uniform"


class Random(Allocation):
    title = "random"
    phrase = "towards the geometric mean of its teachers, with random weights"
    rule: Literal["random"] = "random"


class Single(Allocation):
    title = "single {teacher}"
    phrase = "towards `{teacher}` alone"
    rule: Literal["single"] = "single"
    teacher: Annotated[Text, Field(description="Give the name of one of the teachers.")]


class Routed(Allocation):
    title = "routed"
    phrase = "towards the teacher that the prompt's label names"
    rule: Literal["routed"] = "routed"


class OwnRule(Scored):
    """A function of the user's, in Python: `rule` is its name."""

    title = "{rule}"
    phrase = "towards its teachers, weighted by `{rule}`"


class Target(Variant):
    """What the student is pulled to."""


class GeometricMean(Target):
    title = "geometric mean"
    rule: Literal["geometric_mean"] = "geometric_mean"


class Emphasis(Variant):
    """How much a token or a response counts."""


class Even(Emphasis):
    title = "even"
    rule: Literal["even"] = "even"


Kind = TypeVar("Kind", bound=Variant)


def _table(*kinds: type[Kind]) -> dict[str, type[Kind]]:
    return {kind.model_fields["rule"].default: kind for kind in kinds}


RULES = _table(Trust, Uniform, Random, Single, Routed)
TARGETS = _table(GeometricMean)
EMPHASES = _table(Even)
#: The parts that are variants: the field of a configuration, and its table.
PARTS: dict[str, Mapping[str, type[Variant]]] = {"allocation": RULES, "target": TARGETS, "emphasis": EMPHASES}
#: The paper's own.
TRUST, MEAN, EVEN = "trust", "geometric_mean", "even"
DEFAULTS = {"allocation": TRUST, "target": MEAN, "emphasis": EVEN}
#: Parameters that a configuration in Python also has as fields beside the rule's name.
FLAT = {"gamma": "gamma", "score": "score", "granularity": "granularity", "calibrated": "calibrated"}
FLAT |= {"teacher": "single_teacher"}


def part_of(config: Mapping[str, Any], part: str) -> Variant:
    """What a run's configuration says of a part. Nothing is checked: it was, when the run began. 0.1.0 had only an
    allocation, its parameters beside its name."""
    value = config.get(part, DEFAULTS[part])
    if not isinstance(value, Mapping):
        value = {"rule": value, **{name: config[flat] for name, flat in FLAT.items() if config.get(flat) is not None}}
    kind = PARTS[part].get(str(value.get("rule")), OwnRule)
    return kind.model_construct(**{name: value[name] for name in kind.model_fields if name in value})


def scores_of(config: Mapping[str, Any]) -> Scored | None:
    """The rule of a run's configuration, if it is one of the package's and looks at scores."""
    rule = part_of(config, "allocation")
    return rule if isinstance(rule, Scored) and rule.rule in RULES else None
