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
    #: Whether each teacher's reference is asked, and the initial student.
    needs_reference: ClassVar[bool] = False
    needs_initial: ClassVar[bool] = False
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
    `scored` rules look at scores, `labelled` ones at the prompts' labels."""

    phrase: ClassVar[str]
    scored: ClassVar[bool] = False
    labelled: ClassVar[bool] = False


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
    labelled = True
    rule: Literal["routed"] = "routed"


_Temperature = Annotated[float, Field(gt=0, description="The authors use 0.1.")]


class Argmax(Scored):
    title = "argmax of trust"
    phrase = "at each token towards the teacher with the highest score"
    rule: Literal["argmax"] = "argmax"


class Directed(Scored):
    """Trust, among the teachers that would move the student the way they have moved themselves."""

    title = "directed trust"
    phrase = "towards the geometric mean of the teachers that point where they have moved, each weighted {how}"
    needs_reference = True
    rule: Literal["directed"] = "directed"
    gamma: Annotated[float, Field(gt=0, description="As of trust.")] = 7.0


class ExpertAlign(Allocation):
    """MOPD-Router, arXiv 2609.30837. `top`: of the student's candidates, how many are compared; null: all."""

    title = "ExpertAlign"
    phrase = "towards the geometric mean of its teachers, weighted as they point where they have moved"
    needs_reference = True
    rule: Literal["expert_align"] = "expert_align"
    top: Annotated[int | None, Field(ge=2, description="The authors use 16.")] = 16


class EntropySoftmax(Allocation):
    title = "softmax of entropy"
    phrase = "towards the geometric mean of its teachers, the certain ones first"
    rule: Literal["entropy"] = "entropy"
    temperature: _Temperature = 0.1


class Novelty(Allocation):
    title = "accessible novelty"
    phrase = "towards the geometric mean of its teachers, weighted by how far they are from it"
    rule: Literal["novelty"] = "novelty"
    js_temperature: _Temperature = 0.1
    temperature: _Temperature = 0.1


class Consensus(Allocation):
    """Open-MOPD, arXiv 2608.19098."""

    title = "consensus"
    phrase = "towards the mean of its teachers where they agree, elsewhere towards the one that the label names"
    labelled = True
    rule: Literal["consensus"] = "consensus"
    nats: Annotated[float, Field(ge=0, description="The authors use 1.")] = 1.0


class OwnRule(Scored):
    """A function of the user's, in Python: `rule` is its name."""

    title = "{rule}"
    phrase = "towards its teachers, weighted by `{rule}`"


class Target(Variant):
    """What the student is pulled to."""


class GeometricMean(Target):
    title = "geometric mean"
    rule: Literal["geometric_mean"] = "geometric_mean"


class Extrapolated(Target):
    """Every teacher's change `factor` times as far, reached in `ramp` steps. ExOPD, arXiv 2602.12125."""

    title = "extrapolated"
    needs_reference = True
    rule: Literal["extrapolated"] = "extrapolated"
    factor: Annotated[float, Field(gt=0, description="1 is the paper's own target.")] = 1.5
    ramp: Annotated[int, Field(ge=0, description="Steps from factor 1 to it.")] = 0


class Shift(Target):
    """The sum of the teachers' changes on the initial student. ShiftMOPD, arXiv 2610.10460. `weighted`: by the
    allocation, the largest weight counting 1. `endpoint`: changes from the initial student, the authors' control."""

    title = "sum of shifts"
    needs_reference = True
    needs_initial = True
    rule: Literal["shift"] = "shift"
    weighted: Annotated[bool, Field(description="Write true to weight the shifts.")] = False
    endpoint: Annotated[bool, Field(description="Write true for the control.")] = False


class Emphasis(Variant):
    """How much a token or a response counts."""


class Even(Emphasis):
    title = "even"
    rule: Literal["even"] = "even"


class Grouped(Emphasis):
    """By domain (`by: label`), or by the teacher with the largest weight (`by: leader`), which needs no labels. The
    statistic is that of the step before."""

    by: Annotated[Literal["label", "leader"], Field(description="Write label or leader.")] = "label"


class DomainNormalised(Grouped):
    """DN-MOPD, arXiv 2609.35347: σ of all over σ of the group, of log target − log student at the sampled tokens."""

    title = "domain-normalised"
    rule: Literal["domain_normalised"] = "domain_normalised"
    low: Annotated[float, Field(gt=0, le=1, description="The authors use 0.25.")] = 0.25
    high: Annotated[float, Field(ge=1, description="The authors use 4.")] = 4.0


class EqualShares(Grouped):
    """Open-MOPD, arXiv 2608.19098: every group has the same share of the loss's weight."""

    title = "equal shares"
    rule: Literal["equal_shares"] = "equal_shares"


Kind = TypeVar("Kind", bound=Variant)


def _table(*kinds: type[Kind]) -> dict[str, type[Kind]]:
    return {kind.model_fields["rule"].default: kind for kind in kinds}


RULES = _table(Trust, Uniform, Random, Single, Routed)
RULES |= _table(Argmax, Directed, ExpertAlign, EntropySoftmax, Novelty, Consensus)
TARGETS = _table(GeometricMean, Extrapolated, Shift)
EMPHASES = _table(Even, DomainNormalised, EqualShares)
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
