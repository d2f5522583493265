"""Which policies share weights, and where each set of weights lives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trustmopd.policies.references import role_of, starts_of
from trustmopd.policies.teacher import Teacher
from trustmopd.recipe.teacher_source import LOCAL, RAY


@dataclass(frozen=True)
class Unit:
    """One set of weights, and the policies that it serves. `given` are the weights; None: the initial student's.
    `itself` names the policy that is the weights alone, `adapters` those that are adapters on them."""

    role: str
    given: Teacher | None
    on: str
    itself: str | None = None
    adapters: Mapping[str, Teacher] = field(default_factory=dict)
    gpus: float | None = None
    replicas: int = 1

    @property
    def names(self) -> list[str]:
        return [*self.adapters, *([self.itself] if self.itself else [])]


def placed(name: str, teacher: Teacher, placement: str) -> Teacher:
    """With its place: its own, or that of all teachers."""
    on = teacher.on or (LOCAL if placement == "resident" else placement)
    if on != RAY and (teacher.gpus, teacher.replicas) != (None, None):
        raise ValueError(
            f"{role_of(name)} has gpus = {teacher.gpus} and replicas = {teacher.replicas}, but lives on: "
            f"{on}. They are for policies on Ray. Remove them, or set on: ray."
        )
    return replace(teacher, on=on)


def asked_for(place: str, units: Sequence[Unit], placement: str) -> str:
    """How the user has put policies at a place: all of them, or each of those that are there. Empty if none is."""
    names = [role_of(name) for unit in units if unit.on == place for name in unit.names]
    if not names:
        return ""
    return f"teacher_placement = {place!r}" if placement == place else f"on: {place} ({', '.join(names)})"


def units_of(
    teachers: Mapping[str, Teacher], reference: Teacher | None, *, with_reference: bool, placement: str
) -> list[Unit]:
    """What a run loads. Adapters over one base that live at the same place share it, and the reference too if it is
    this base; the most `gpus` and `replicas` among them count. The initial student has no place of its own."""
    starts = [start for start in starts_of(teachers, reference) if start.used(with_reference)]
    carried = {name for start in starts for name in start.carries}
    units = []
    for name, teacher in teachers.items():
        if name not in carried:
            own = placed(name, teacher, placement)
            units.append(_unit(role_of(name), own, name, {}, {name: own}))
    for start in starts:
        policies = {name: placed(name, teachers[name], placement) for name in start.carries}
        if with_reference and start.measures:
            policies[start.name] = placed(start.name, start.given or Teacher(), placement)
        for on in dict.fromkeys(str(policy.on) for policy in policies.values()):
            here = {name: policy for name, policy in policies.items() if policy.on == on}
            itself = start.name if start.name in here else None
            adapters = {name: policy for name, policy in here.items() if name != itself}
            units.append(_unit(role_of(start.name), start.given, itself, adapters, here))
    return units


def _unit(
    role: str,
    given: Teacher | None,
    itself: str | None,
    adapters: Mapping[str, Teacher],
    policies: Mapping[str, Teacher],
) -> Unit:
    gpus = [policy.gpus for policy in policies.values() if policy.gpus is not None]
    replicas = [policy.replicas for policy in policies.values() if policy.replicas is not None]
    on = next(iter(policies.values())).on
    assert on is not None
    return Unit(role, given, on, itself, adapters, max(gpus, default=None), max(replicas, default=1))
