"""The frozen policies of a run, resolved once: what each is, what it is measured from, whose weights it shares, how it
reads the prompts, and where it lives. Preflight, loading, the plan, the dry run and the manifest read this graph; none
of them asks again."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trustmopd.policies.teacher import REFERENCE, STUDENT, Teacher, as_reference, as_teachers, model_id
from trustmopd.recipe.rollout_engines import TRANSFORMERS, VLLM
from trustmopd.recipe.teacher_source import OWN, RAY, RESIDENT, View

#: How the student reads.
STUDENTS = View()
#: The initial student, where it is asked and is no teacher's reference.
INITIAL = f"{REFERENCE}:"


@dataclass(frozen=True)
class Policy:
    """A teacher or a reference. `checkpoint` is what the user gave, with the model under an adapter; None: the initial
    student. `reference` names the policy that a teacher is measured from, if the score needs one, and `base` the
    reference whose weights it shares, below an adapter or under another view. `is_fallback`: it is measured from the
    initial student in place of what it grew from. `template` names the policy whose own chat template its `view` has,
    if not the student's."""

    name: str
    source: str
    checkpoint: Teacher | None
    on: str
    reference: str | None = None
    base: str | None = None
    is_fallback: bool = False
    view: View = STUDENTS
    template: str | None = None
    engine: str = TRANSFORMERS
    quantization: str | None = None

    @property
    def role(self) -> str:
        return role_of(self.name)

    @property
    def reading(self) -> str:
        """How it reads the prompts; empty if as the student does. Policies on the same weights and with the same
        reading are one."""
        return f"{self.view} of {role_of(self.template)}" if self.template not in (None, self.name) else str(self.view)

    @property
    def home(self) -> tuple[str, str, str | None]:
        """Policies may share weights if this is the same."""
        return self.on, self.engine, self.quantization


@dataclass(frozen=True)
class Weights:
    """One set of weights in one place. `checkpoint` is None for the initial student's. `bare` names the first policy
    that is these weights alone, `adapters` those that are adapters on them; `sources` are those of all of them: others
    are the weights alone under another view. `has_own_template`: some policy reads another template than the
    student's."""

    role: str
    checkpoint: Teacher | None
    on: str
    bare: str | None = None
    adapters: Mapping[str, Teacher] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    gpus: float | None = None
    replicas: int = 1
    has_own_template: bool = False
    engine: str = TRANSFORMERS
    quantization: str | None = None

    @property
    def names(self) -> list[str]:
        return list(self.sources)


@dataclass(frozen=True)
class PolicyGraph:
    """`teachers` are all that were named, in order, and `used` those that the rule asks. `references` are the distinct
    models that teachers are measured from, or are adapters on; the common one is first. `weights` are what is loaded.
    `placement` is where policies without a place of their own live. `initial` is the reference that the target starts
    from: the initial student."""

    teachers: dict[str, Policy]
    references: dict[str, Policy]
    used: list[str]
    weights: list[Weights]
    placement: str = RESIDENT
    initial: str | None = None

    @property
    def policies(self) -> dict[str, Policy]:
        """Those that answer: the teachers in use and their references."""
        return {name: self.teachers[name] for name in self.used} | self.scored

    @property
    def scored(self) -> dict[str, Policy]:
        """The references that some teacher is measured from, or the target starts from."""
        asked = {teacher.reference for teacher in self.teachers.values()} | {self.initial}
        return {name: policy for name, policy in self.references.items() if name in asked}

    def measured_from(self, reference: str) -> list[str]:
        return [name for name, teacher in self.teachers.items() if teacher.reference == reference]

    def first_copies(self, is_copy: Callable[[str, str], bool]) -> dict[str, str]:
        """For each reference the first of its copies, so that copies read a rollout once."""
        return {
            name: next(other for other in self.scored if other == name or is_copy(other, name)) for name in self.scored
        }

    def at(self, place: str) -> list[Weights]:
        return [weights for weights in self.weights if weights.on == place]

    def asked_for(self, place: str) -> str:
        """How the user has put policies at a place: all of them, or each of those that are there. Empty if none is."""
        names = [role_of(name) for weights in self.at(place) for name in weights.names]
        if not names:
            return ""
        return f"teacher_placement = {place!r}" if self.placement == place else f"on: {place} ({', '.join(names)})"


def resolve(
    teachers: Mapping[str, Any],
    reference: Any,
    student: Any,
    *,
    placement: str = RESIDENT,
    engine: str = TRANSFORMERS,
    quantization: str | None = None,
    with_reference: bool = True,
    with_initial: bool = False,
    only: str | None = None,
) -> PolicyGraph:
    """From the arguments of the trainer. `placement`, and on Ray `engine` and `quantization`, are of policies that name
    none. `with_reference`: the rules need one, `with_initial`: and the initial student.
    `only`: the one teacher that the rule asks. A reference that is the student, by object or by name, is the initial
    student."""
    student = str(student) if isinstance(student, Path) else student
    source = f"{student if isinstance(student, str) else model_id(student)} (initial student)"
    usual = Policy("", source, None, placement, engine=engine, quantization=quantization)
    distinct: dict[Hashable, Policy] = {}
    roots: dict[str, Hashable] = {}  # the weights below each policy

    def reference_of(name: str, given: Teacher | str | None, view: View, template: str | None = None) -> Policy:
        """The one that this is already, or a new one of this name. `template`: whose own one its view has."""
        key = _key(given, student)
        policy = _placed(name, given if isinstance(given, Teacher) and key is not None else None, usual)
        policy = replace(policy, view=view, template=template)
        _check_one_place(known := distinct.setdefault((key, policy.reading), policy), policy)
        roots[known.name] = key
        return known

    asked = None if reference is None else as_reference("the reference", reference)
    named = asked if asked and asked.model is not None else None
    common = reference_of(REFERENCE, named, *_view_of(REFERENCE, asked))
    shared = student if common.checkpoint is None else common.checkpoint.model
    found = {}
    for name, teacher in as_teachers(teachers).items():
        own_name, given = f"{REFERENCE}:{name}", teacher.reference
        checkpoint = teacher if teacher.model is not None else replace(teacher, model=shared)
        is_bare = teacher.model is None and teacher.adapter is None
        roots[name] = roots[REFERENCE] if is_bare else _key(checkpoint, student)
        start = given if given == STUDENT or (isinstance(given, Teacher) and given.model) else common.checkpoint
        chosen = given if isinstance(given, Teacher) else asked if given is None else None
        if chosen is not None and chosen.view is not None:
            seen = _view_of(own_name if given else REFERENCE, chosen)
        else:  # the prompt is what displaces a prompted policy; of a trained one it must not count
            seen = _view_of(name, None if roots[name] == _key(start, student) else teacher)
        own = reference_of(own_name, start, *seen)
        is_on_own = teacher.adapter is not None and roots[own.name] != roots[REFERENCE] and _is_base(own, teacher)
        base = REFERENCE if teacher.model is None else own.name if is_on_own else None
        roots[name] = roots[name] if base is None else roots[base]
        view, template = _view_of(name, teacher)
        found[name] = replace(
            _placed(name, teacher, usual),
            source=common.source if is_bare else teacher.source,
            checkpoint=checkpoint,
            reference=own.name if with_reference and only in (None, name) else None,
            base=base,
            is_fallback=given == STUDENT or (own.checkpoint is None and common.checkpoint is not None),
            view=view,
            template=template,
        )
    initial_student = reference_of(INITIAL, None, View()).name if with_initial else None
    needed = {other for policy in found.values() for other in (policy.reference, policy.base)} | {initial_student}
    references = {policy.name: policy for policy in distinct.values() if policy.name in needed}
    used = [name for name in found if only in (None, name)]
    weights = _weights([found[name] for name in used], references, initial_student, roots)
    return PolicyGraph(found, references, used, weights, placement, initial_student)


def _view_of(name: str, given: Teacher | None) -> tuple[View, str | None]:
    """The view that was asked for, and whose own template it has, if not the student's."""
    view = (given and given.view) or View()
    return view, name if view.template == OWN else None


def fallback_note(teachers: Iterable[Policy]) -> str:
    """Says which of them are measured by the fall-back; nothing if there are none."""
    named = ", ".join(teacher.name for teacher in teachers if teacher.is_fallback)
    return named and f"{named}: measured from the student, which is a fall-back unless the teacher grew from it"


def is_reference(name: str) -> bool:
    """Whether a policy is a reference, not a teacher."""
    return name == REFERENCE or name.startswith(f"{REFERENCE}:")


def role_of(name: str) -> str:
    """What messages call a policy."""
    if name == INITIAL:
        return "the initial student"
    if not is_reference(name):
        return f"teacher '{name}'"
    teacher = name.partition(":")[2]
    return f"the reference of teacher '{teacher}'" if teacher else "the reference"


def _placed(name: str, checkpoint: Teacher | None, usual: Policy) -> Policy:
    """Where it says, or as `usual`, which is also the initial student."""
    own = checkpoint or Teacher()
    on = own.on or usual.on
    if on != RAY and (own.gpus, own.replicas) != (None, None):
        raise ValueError(
            f"{role_of(name)} has gpus = {own.gpus} and replicas = {own.replicas}, but lives on: {on}. They are for "
            "policies on Ray. Remove them, or set on: ray."
        )
    engine = own.engine or (usual.engine if on == RAY else TRANSFORMERS)
    quantization = own.quantization or (usual.quantization if engine == VLLM else None)
    if engine == VLLM and on != RAY:
        raise ValueError(
            f"{role_of(name)} has engine = {engine}, but lives on: {on}. vLLM runs in actors. Set on: ray, or leave "
            "engine out."
        )
    if quantization and engine != VLLM:
        raise ValueError(
            f"{role_of(name)} has quantization = {quantization}, but engine = {engine}, which reads weights as they "
            "are. Set on: ray and engine: vllm, or leave quantization out."
        )
    source = checkpoint.source if checkpoint else usual.source
    return Policy(name, source, checkpoint, on, engine=engine, quantization=quantization)


def _check_one_place(first: Policy, again: Policy) -> None:
    """One reference has one place."""
    places = [
        {name: getattr(each, name) for name in ("on", "gpus", "replicas", "engine", "quantization")}
        for each in (first.checkpoint or Teacher(), again.checkpoint or Teacher())
    ]
    if places[0] != places[1]:
        raise ValueError(
            f"{first.role} and {again.role} are one model ({first.source}), but with {places[0]} and {places[1]}. It "
            "is loaded once: give both the same place."
        )


def _weights(
    teachers: list[Policy], references: Mapping[str, Policy], initial: str | None, roots: Mapping[str, Hashable]
) -> list[Weights]:
    """Policies on the same weights that live at the same place share them: adapters, views, and the reference too if
    it is their base."""
    ordered, bases = [teacher for teacher in teachers if teacher.base is None], dict[Hashable, Policy]()
    for name, reference in references.items():
        bases.setdefault(roots[name], reference)
        ordered += [teacher for teacher in teachers if teacher.base == name]
        if name == initial or any(teacher.reference == name for teacher in teachers):
            ordered.append(reference)
    copies = _copies([*references.values(), *teachers], roots)
    sharing: dict[tuple[Hashable, Hashable, int], list[Policy]] = {}
    for policy in ordered:
        sharing.setdefault((roots[policy.name], policy.home, copies[policy.name]), []).append(policy)
    return [
        _shared(policies[0] if copy else bases.get(root, policies[0]), policies)
        for (root, _, copy), policies in sharing.items()
    ]


def _copies(policies: list[Policy], roots: Mapping[str, Hashable]) -> dict[str, int]:
    """How many before it are the same weights and read the same: a plan by shapes alone names one folder for all. A run
    refuses them."""
    seen: Counter[Hashable] = Counter()
    copies = {}
    for policy in policies:
        alone = policy.checkpoint is None or policy.checkpoint.adapter is None
        same = (roots[policy.name], policy.reading) if alone else policy.name
        copies[policy.name] = seen[same]
        seen[same] += 1
    return copies


def _shared(base: Policy, policies: list[Policy]) -> Weights:
    """The weights of `base`. The most `gpus` and `replicas` count."""
    given = {policy.name: policy.checkpoint or Teacher() for policy in policies}
    adapters = [policy.name for policy in policies if policy.base is not None and given[policy.name].adapter]
    bare = [name for name in (base.name, *given) if name in given and name not in adapters]
    return Weights(
        base.role,
        base.checkpoint,
        policies[0].on,
        bare=bare[0] if bare else None,
        adapters={name: replace(given[name], model=None) for name in adapters},
        sources={policy.name: policy.source for policy in policies},
        gpus=max((teacher.gpus for teacher in given.values() if teacher.gpus is not None), default=None),
        replicas=max(teacher.replicas or 1 for teacher in given.values()),
        has_own_template=any(policy.template for policy in policies),
        engine=policies[0].engine,
        quantization=policies[0].quantization,
    )


def _is_base(reference: Policy, teacher: Teacher) -> bool:
    # A revision given with an adapter may be the adapter's, so such a teacher does not share a base.
    under = Teacher(model=teacher.model, dtype=teacher.dtype, revision=teacher.revision and f"{teacher.revision}?")
    return reference.checkpoint is not None and _key(under) == _key(reference.checkpoint)


def _key(given: Teacher | str | None, student: Any = None) -> Hashable:
    """Equal keys are one model; None is the student. Another revision or dtype, or an adapter, makes it another; a view
    does not."""
    if given is None or isinstance(given, str):
        return None
    named = isinstance(given.model, (str, Path))
    is_student = given.model is student or (named and str(given.model) in (STUDENT, student))
    if is_student and replace(given, reference=None, view=None) == Teacher(model=given.model, name=given.name):
        return None
    here = named and Path(str(given.model)).is_dir()
    model = str(Path(str(given.model)).resolve()) if here else given.model if isinstance(given.model, str) else None
    adapter = None if given.adapter is None else str(given.adapter)
    return model or id(given.model), adapter, given.revision, str(given.dtype)
