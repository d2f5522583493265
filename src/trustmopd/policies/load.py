"""From `Teacher` records to a `TeacherPool`: load what the run uses, share what can be shared."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel

from trustmopd.checkpoints.completeness import load_complete
from trustmopd.checkpoints.full_weights import whole_loading
from trustmopd.heads import Head
from trustmopd.policies.fingerprint import fingerprint, fingerprint_tensors
from trustmopd.policies.graph import Unit, units_of
from trustmopd.policies.hosts.sharded import ShardedHost
from trustmopd.policies.pool import Elsewhere, Host, Member, RemoteMember, TeacherPool
from trustmopd.policies.preflight.duplicates import adapter_settings, check_fingerprints
from trustmopd.policies.references import starts_of
from trustmopd.policies.teacher import Teacher, model_id
from trustmopd.recipe.teacher_source import OFFLOAD, RAY, SHARDED

StudentModel: TypeAlias = PreTrainedModel | PeftModel


@whole_loading()
def build_pool(
    teachers: Mapping[str, Teacher],
    reference: Teacher | None,
    student: StudentModel,
    *,
    with_reference: bool,
    device: torch.device,
    dtype: torch.dtype,
    placement: str = "resident",
    share: bool = True,
    autocast_dtype: torch.dtype | None = None,
    trust_remote_code: bool = False,
    elsewhere: Elsewhere | None = None,
) -> TeacherPool:
    """`teachers` are those that the allocation rule uses. `reference=None` means the student as it is now. With
    `share`, the reference and all adapters use a LoRA student's frozen weights. Equal references are loaded once.
    Policies on Ray are loaded by `elsewhere`."""
    loader = Loader(dtype, student=student, share=share, trust_remote_code=trust_remote_code)
    units = units_of(teachers, reference, with_reference=with_reference, placement=placement)
    away = [unit for unit in units if unit.on == RAY]
    if elsewhere is not None:
        elsewhere.start(away, loader)  # they load while the others do
    found: dict[str, Member | RemoteMember] = {}
    for unit in units:
        if unit.on != RAY:
            found |= load_unit(unit, loader, device)
    if elsewhere is not None:
        found |= elsewhere.members()
    # Two copies of one checkpoint are one reference, which reads a rollout once.
    starts = starts_of(teachers, reference)
    references = {start.name: found[start.name] for start in starts if start.name in found}
    first = {member.fingerprint: name for name, member in reversed(references.items())}
    measured_from = {
        name: first[references[start.name].fingerprint]
        for start in starts
        if start.name in references
        for name in start.measures
    }
    members = {name: found[name] for name in teachers}
    members |= {name: references[name] for name in dict.fromkeys(first[m.fingerprint] for m in references.values())}
    check_fingerprints(members, measured_from)
    measured_from = {name: measured_from[name] for name in teachers if name in measured_from}
    return TeacherPool(members, measured_from, autocast_dtype, elsewhere)


def load_unit(unit: Unit, loader: "Loader", device: torch.device) -> dict[str, Member]:
    """The policies of one set of weights."""
    base, shared, own_adapter = loader.weights(unit.role, unit.given)
    weights, size = fingerprint(base), sum(p.numel() for p in base.parameters())  # before they are spread
    source = unit.given.source if unit.given is not None else f"{model_id(base)} (initial student)"
    adapters = {}
    for name, teacher in unit.adapters.items():
        base = loader.add_adapter(base, f"teacher-{name}", teacher)
        adapters[name] = _adapter_fingerprint(base, f"teacher-{name}")
    host, head = _host(base.eval(), device, unit.on, shared=shared), Head.of(base)
    members = {
        name: Member(name, host, head, unit.adapters[name].source, f"{weights}+{own}", size, f"teacher-{name}")
        for name, own in adapters.items()
    }
    if unit.itself is not None:
        members[unit.itself] = Member(unit.itself, host, head, source, weights, size, own_adapter)
    return members


def _host(model: StudentModel, device: torch.device, on: str, *, shared: bool) -> Host:
    """Tensors that the student uses too are not moved."""
    if on == SHARDED and not shared:
        return ShardedHost(model, device)
    return Host(model, device, offload=on == OFFLOAD, shared=shared)


def _adapter_fingerprint(model: PeftModel, adapter: str) -> str:
    tensors = get_peft_model_state_dict(model, adapter_name=adapter)
    return fingerprint_tensors(tensors.items(), adapter_settings(model.peft_config[adapter]))


def frozen_twin(student: StudentModel, dtype: torch.dtype | None = None) -> StudentModel:
    """A second module tree with the student's weights. Frozen tensors are shared; trainable ones are copied (to
    `dtype`). Adapters can be added, switched and removed without any effect on the student."""
    tensors = {
        id(tensor): nn.Parameter(tensor.detach().to(dtype or tensor.dtype, copy=True), requires_grad=False)
        if tensor.requires_grad
        else tensor
        for tensor in (*student.parameters(), *student.buffers())
    }
    return copy.deepcopy(student, tensors)


class Loader:
    """`device_map` spreads what is read over several GPUs. Without a `student`, every unit has weights of its own."""

    def __init__(
        self,
        dtype: torch.dtype,
        *,
        student: StudentModel | None = None,
        share: bool = True,
        trust_remote_code: bool = False,
        device_map: str | None = None,
    ):
        self.dtype = dtype
        self.student = student
        self.share = share
        self.trust_remote_code = trust_remote_code
        self.device_map = device_map

    def weights(self, role: str, given: Teacher | None) -> tuple[StudentModel, bool, str | None]:
        """A model, whether it shares the student's tensors, and the adapter that is part of it. None: the student as
        it is now."""
        if given is not None:
            return self._full(role, given)
        assert self.student is not None
        if not isinstance(self.student, PeftModel):
            all_copied = all(parameter.requires_grad for parameter in self.student.parameters())
            twin = frozen_twin(self.student, self.dtype if all_copied else None)
            return (twin, False, None) if all_copied else (*self._own(twin), None)
        twin = frozen_twin(self.student)
        # A fresh adapter changes nothing, so the bare base is the initial student. A trained adapter is part of it.
        fresh = fingerprint(twin) == fingerprint(bare := frozen_twin(twin).unload())
        twin = bare if fresh else twin
        own_adapter = None if fresh else twin.active_adapter
        return *self._own(twin), own_adapter

    def _own(self, twin: StudentModel) -> tuple[StudentModel, bool]:
        """A twin of the student, and whether it still shares tensors with it."""
        return (twin, True) if self.share else (copy.deepcopy(twin), False)

    def _full(self, role: str, teacher: Teacher) -> tuple[StudentModel, bool, str | None]:
        """A model of its own, whether it shares tensors with another, and the adapter that is active in it."""
        given = teacher.model
        if isinstance(given, (str, Path)):
            model = self._read(role, teacher)
            if teacher.adapter is not None:
                model = self.add_adapter(model, "teacher", teacher).merge_and_unload()
            return model, False, None
        assert given is not None
        base = self.student.get_base_model() if isinstance(self.student, PeftModel) else None
        # The student is trained, and a loaded base may have several teachers: neither may be frozen or changed.
        is_student = self.student is not None and (given is self.student or given is base)
        model, shared = (frozen_twin(given), True) if is_student or teacher.adapter is not None else (given, False)
        if is_student:
            model, shared = self._own(model)
        if teacher.adapter is not None:
            model = self.add_adapter(model, "teacher", teacher)
            model.set_adapter("teacher", inference_mode=True)
        return model, shared, model.active_adapter if isinstance(model, PeftModel) else None

    def _read(self, role: str, teacher: Teacher) -> PreTrainedModel:
        try:
            model = load_complete(
                teacher.model,
                revision=teacher.revision,
                dtype=teacher.dtype or self.dtype,
                trust_remote_code=self.trust_remote_code,
                device_map=self.device_map,
            )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise ValueError(
                f"{role}: cannot load {teacher.source!r} ({error}). Check the path or Hub id, and that its files are "
                "complete."
            ) from error
        if self.device_map is not None and {"cpu", "disk"} & {str(place) for place in model.hf_device_map.values()}:
            raise ValueError(
                f"{role}: {teacher.source!r} does not fit on {torch.cuda.device_count()} GPUs. Give it more (gpus), "
                "or a smaller teacher_dtype."
            )
        return model.requires_grad_(False)

    def add_adapter(self, base: StudentModel, name: str, teacher: Teacher) -> PeftModel:
        path = str(teacher.adapter)
        try:
            if isinstance(base, PeftModel):
                base.load_adapter(path, adapter_name=name, revision=teacher.revision)
            else:
                base = PeftModel.from_pretrained(base, path, adapter_name=name, revision=teacher.revision)
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            raise ValueError(
                f"teacher '{teacher.name}': cannot load the adapter {path!r} over {model_id(base)} ({error}). Check "
                "the path, and that it was trained on this base."
            ) from error
        return base
