"""`Teacher`: how a specialist or a reference is specified."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType

import torch
from transformers import PreTrainedModel

from trustmopd.recipe.sections import check_fields
from trustmopd.recipe.teacher_source import (
    PLACES,
    POLICY_ENGINES,
    QUANTIZATIONS,
    TeacherSource,
    View,
    check_not_endpoint,
    check_teacher_name,
    place_named,
)
from trustmopd.recipe.teacher_source import REFERENCE as REFERENCE
from trustmopd.recipe.teacher_source import STUDENT as STUDENT


@dataclass(frozen=True)
class Teacher:
    """One specialist: a full checkpoint (`model`), a PEFT adapter over the pool's shared base (`adapter`), or an
    adapter over a base of its own (both). `model` is a Hub id, a path or a loaded model; `revision` and `dtype`
    apply to loading. `reference` is the model it was trained from, if that is not the pool's common reference: a Hub
    id, a path, a loaded model, a `Teacher`, or "student" for the initial student. `view` is how it reads the prompts,
    as {"template": "own"} or {"system": "…"}; with a view alone it is the common reference. `on` is where it lives
    (resident, offload, sharded or ray), if not where `teacher_placement` puts all of them; on Ray it has `replicas`
    that share a batch, with `gpus` each: a part of one, or several. There `engine` computes its hidden states
    (transformers or vllm), if not what `teacher_engine` names; vLLM's weights may have a `quantization` (fp8)."""

    model: str | Path | PreTrainedModel | None = None
    adapter: str | Path | None = None
    reference: "str | Path | PreTrainedModel | Teacher | None" = None
    revision: str | None = None
    dtype: str | torch.dtype | None = None
    name: str | None = None
    on: str | None = None
    gpus: float | None = None
    replicas: int | None = None
    engine: str | None = None
    quantization: str | None = None
    view: View | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.view, View | None):
            given = dict(self.view) if isinstance(self.view, Mapping) else self.view
            object.__setattr__(self, "view", check_fields(View, given, "view"))

    @classmethod
    def of(cls, source: TeacherSource) -> "Teacher":
        """As a recipe names it."""
        fields = source.model_dump(exclude={"reference", "view"})
        return cls(**fields, reference=None if source.reference is None else cls.of(source.reference), view=source.view)

    @property
    def source(self) -> str:
        """The name of its weights in messages and manifests."""
        model = self.model if self.model is None or isinstance(self.model, (str, Path)) else model_id(self.model)
        return " + ".join(str(part) for part in (model, self.adapter) if part is not None)


def model_id(model: PreTrainedModel) -> str:
    """The path or Hub id of a loaded model; its class name if it was built in memory."""
    return getattr(model.config, "_name_or_path", "") or type(model).__name__


def as_teachers(teachers: Mapping[str, str | Path | PreTrainedModel | Teacher]) -> dict[str, Teacher]:
    """The `teachers` argument of the trainer as `Teacher` records, each with its name."""
    if not isinstance(teachers, Mapping) or not teachers:
        raise ValueError(
            f"teachers = {teachers!r}: a pool needs at least one teacher, as a mapping from name to checkpoint, "
            'e.g. teachers={"math": "path-or-hub-id"}.'
        )
    pool = {}
    for name, given in teachers.items():
        try:
            check_teacher_name(name)
        except ValueError as error:
            raise ValueError(f"teacher name {name!r}: {error}") from None
        teacher = given if isinstance(given, Teacher) else Teacher(model=given)
        if teacher.model is None and teacher.adapter is None and teacher.view is None:
            raise ValueError(
                f"teacher '{name}' has neither `model` nor `adapter`: nothing to load. Give one of the two."
            )
        teacher = _checked(f"teacher '{name}'", teacher)
        own = teacher.reference
        if own in (STUDENT, Teacher(model=STUDENT)):
            own = STUDENT
        elif own is not None:
            own = as_reference(f"the reference of teacher '{name}'", own)
        pool[name] = replace(teacher, name=name, reference=own)
    return pool


def as_reference(role: str, given: "str | Path | PreTrainedModel | Teacher") -> Teacher:
    """As a `Teacher` that is called `role`. Adapters may be put on a reference, so it has a model of its own; with a
    view alone it is the common reference."""
    reference = given if isinstance(given, Teacher) else Teacher(model=given)
    is_view = reference.view is not None and reference.adapter is None
    if (reference.model is None and not is_view) or reference.reference is not None:
        raise ValueError(
            f"{role} is {given!r}, but it must be a model without a reference of its own. Give its path or Hub id, or "
            "leave it out."
        )
    return replace(_checked(role, reference), name=role)


def _checked(role: str, given: Teacher) -> Teacher:
    if not isinstance(given.model, (str, Path, NoneType)) and not hasattr(given.model, "get_output_embeddings"):
        raise ValueError(
            f"{role} is a {type(given.model).__name__}. Give a path, a Hub id or a loaded transformers model."
        )
    if isinstance(given.model, str):
        try:
            check_not_endpoint(given.model)
        except ValueError as error:
            raise ValueError(f"{role} is {given.model!r}: {error}") from None
    check_dtype(f"dtype of {role}", given.dtype)
    for name, choices in {"engine": POLICY_ENGINES, "quantization": QUANTIZATIONS}.items():
        if (value := getattr(given, name)) not in (None, *choices):
            raise ValueError(f"{role} has {name} = {value!r}. Choose from {', '.join(choices)}.")
    on = place_named(given.on)
    if on not in (None, *PLACES):
        raise ValueError(f"{role} has on = {given.on!r}. Choose from {', '.join(PLACES)}.")
    gpus, replicas = given.gpus or 0, 1 if given.replicas is None else given.replicas
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)) or replicas < 1:
        raise ValueError(
            f"{role} has gpus = {given.gpus} and replicas = {given.replicas}. Give a part of one GPU (0.25) or a whole "
            "number of them, and at least one replica."
        )
    return replace(given, on=on)


def check_dtype(field: str, dtype: str | torch.dtype | None, *, auto: bool = True) -> None:
    """Check a dtype for weights; with `auto`, "auto" is accepted: the dtype in which they are stored."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is None or (auto and dtype == "auto") or (isinstance(found, torch.dtype) and found.is_floating_point):
        return
    raise ValueError(f"{field} = {dtype!r} is not a dtype for weights. Use 'bfloat16', 'float16' or 'float32'.")
