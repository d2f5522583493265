"""The reference of each teacher, from which its displacement is measured: the pool's common one or its own."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trustmopd.policies.teacher import REFERENCE, STUDENT, Teacher, as_reference, as_teachers


@dataclass(frozen=True)
class Start:
    """One reference, under its `name` in the pool; `given` is None for the initial student. It `measures` the teachers
    that have it as reference, and `carries` those that are adapters on its weights."""

    name: str
    given: Teacher | None
    measures: list[str] = field(default_factory=list)
    carries: list[str] = field(default_factory=list)

    def used(self, with_reference: bool) -> bool:
        """Whether a run loads it; `with_reference`: the score of the run needs a reference."""
        return bool(self.carries) or (with_reference and bool(self.measures))


def as_pool(teachers: Mapping[str, Any], reference: Any, student: Any) -> tuple[dict[str, Teacher], Teacher | None]:
    """The arguments of the trainer as records. A common reference that is the student itself, by object or by name,
    becomes None. A teacher's own becomes the common one if that is the student too, or else STUDENT."""
    if reference == STUDENT or _is_student(reference, student):
        reference = None
    common = None if reference is None else replace(as_reference("the reference", reference), name=REFERENCE)
    pool = as_teachers(teachers)
    for name, teacher in pool.items():
        if isinstance(teacher.reference, Teacher) and _is_student(teacher.reference, student):
            pool[name] = replace(teacher, reference=None if common is None else STUDENT)
    _check_places(pool, common)
    return pool, common


def fallbacks(teachers: Mapping[str, Teacher]) -> list[str]:
    """Those measured from the initial student in place of a reference: a fall-back, unless they grew from it."""
    return [name for name, teacher in teachers.items() if teacher.reference == STUDENT]


def fallback_note(teachers: Mapping[str, Teacher]) -> str:
    """Says which of them are measured by the fall-back; nothing if there are none."""
    named = ", ".join(fallbacks(teachers))
    return named and f"{named}: measured from the student, which is a fall-back unless the teacher grew from it"


def _is_student(reference: Any, student: Any) -> bool:
    """Another revision or dtype, or an adapter, makes it another model."""
    if isinstance(reference, Teacher):
        bare = reference == Teacher(model=reference.model, name=reference.name)
        return bare and _is_student(reference.model, student)
    return reference is student or (isinstance(reference, (str, Path)) and str(reference) == str(student))


def _check_places(teachers: Mapping[str, Teacher], common: Teacher | None) -> None:
    """One reference has one place."""
    found: dict[Hashable, tuple[str, Teacher]] = {}
    given_by = {REFERENCE: common, **{f"{REFERENCE}:{name}": each.reference for name, each in teachers.items()}}
    for name, given in given_by.items():
        if not isinstance(given, Teacher):
            continue
        first, other = found.setdefault(_key(given), (name, given))
        places = [{"on": each.on, "gpus": each.gpus, "replicas": each.replicas} for each in (other, given)]
        if places[0] != places[1]:
            raise ValueError(
                f"{role_of(first)} and {role_of(name)} are one model ({given.source}), but with {places[0]} and "
                f"{places[1]}. It is loaded once: give both the same place."
            )


def frozen_models(
    teachers: Mapping[str, Teacher], reference: Teacher | None, *, with_reference: bool
) -> dict[str, Teacher | None]:
    """The models that a run loads, by their names in the pool; None is the initial student. A teacher that is an
    adapter on a reference needs no model of its own."""
    starts = starts_of(teachers, reference)
    carried = {name for start in starts for name in start.carries}
    own: dict[str, Teacher | None] = {name: teacher for name, teacher in teachers.items() if name not in carried}
    return own | {start.name: start.given for start in starts if start.used(with_reference)}


def starts_of(teachers: Mapping[str, Teacher], reference: Teacher | None) -> list[Start]:
    """The distinct references of a pool. The common one comes first; it is listed even if no teacher is measured from
    it, because adapters without a model are put on it."""
    starts = {_key(reference): Start(REFERENCE, reference)}
    for name, teacher in teachers.items():
        own = reference if teacher.reference is None else None if teacher.reference == STUDENT else teacher.reference
        assert own is None or isinstance(own, Teacher)
        start = starts.setdefault(_key(own), Start(f"{REFERENCE}:{name}", own))
        start.measures.append(name)
        if teacher.model is None:
            next(iter(starts.values())).carries.append(name)
        elif start.name != REFERENCE and teacher.adapter is not None and _key(_base_of(teacher)) == _key(own):
            start.carries.append(name)
    return list(starts.values())


def is_reference(name: str) -> bool:
    """Whether a member of a pool is a reference, not a teacher."""
    return name == REFERENCE or name.startswith(f"{REFERENCE}:")


def role_of(name: str) -> str:
    """What messages call a member of a pool."""
    if not is_reference(name):
        return f"teacher '{name}'"
    teacher = name.partition(":")[2]
    return f"the reference of teacher '{teacher}'" if teacher else "the reference"


def _base_of(teacher: Teacher) -> Teacher:
    # A revision given with an adapter may be the adapter's, so such a teacher does not share a base.
    return Teacher(model=teacher.model, dtype=teacher.dtype, revision=teacher.revision and f"{teacher.revision}?")


def _key(given: Teacher | None) -> Hashable:
    if given is None:
        return None
    local = isinstance(given.model, (str, Path)) and Path(given.model).is_dir()
    model = str(Path(str(given.model)).resolve()) if local else given.model if isinstance(given.model, str) else None
    adapter = None if given.adapter is None else str(given.adapter)
    return model or id(given.model), adapter, given.revision, str(given.dtype)
