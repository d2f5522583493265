"""From `Teacher` records to a `TeacherPool`: load what the run uses, share what can be shared."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from trustmopd.heads import Head
from trustmopd.teachers.distinct import adapter_settings, check_fingerprints
from trustmopd.teachers.fingerprint import fingerprint, fingerprint_tensors
from trustmopd.teachers.pool import Host, Member, TeacherPool
from trustmopd.teachers.references import role_of, starts_of
from trustmopd.teachers.sharded import ShardedHost
from trustmopd.teachers.spec import Teacher, model_id
from trustmopd.teachers.whole import whole_loading

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
) -> TeacherPool:
    """`teachers` are those that the allocation rule uses. `reference=None` means the student as it is now. With
    `share`, the reference and all adapters use a LoRA student's frozen weights. Equal references are loaded once."""
    loader = _Loader(student, dtype, trust_remote_code, share)
    starts = [start for start in starts_of(teachers, reference) if start.used(with_reference)]
    references: dict[str, Member] = {}
    adapted: dict[str, Member] = {}
    for start in starts:
        base, shared, own_adapter = loader.reference(role_of(start.name), start.given)
        weights = fingerprint(base)  # before they are spread
        source = start.given.source if start.given is not None else f"{model_id(student)} (initial student)"
        adapters = {}
        for name in start.carries:
            base = loader.add_adapter(base, f"teacher-{name}", teachers[name])
            adapters[name] = _adapter_fingerprint(base, f"teacher-{name}")
        host, head = _host(base.eval(), device, placement, shared=shared), Head.of(base)
        for name, own in adapters.items():
            adapted[name] = Member(name, host, head, teachers[name].source, f"{weights}+{own}", f"teacher-{name}")
        if with_reference and start.measures:
            references[start.name] = Member(start.name, host, head, source, weights, own_adapter)
    members: dict[str, Member] = {}
    for name, teacher in teachers.items():
        if name in adapted:
            members[name] = adapted[name]
            continue
        model, shares, active = loader.full(f"teacher '{name}'", teacher)
        weights = fingerprint(model)
        own_host = _host(model.eval(), device, placement, shared=shares)
        members[name] = Member(name, own_host, Head.of(model), teacher.source, weights, active)
    # Two copies of one checkpoint are one reference, which reads a rollout once.
    first = {member.fingerprint: name for name, member in reversed(references.items())}
    measured_from = {
        name: first[references[start.name].fingerprint]
        for start in starts
        if start.name in references
        for name in start.measures
    }
    members |= {name: references[name] for name in dict.fromkeys(first[m.fingerprint] for m in references.values())}
    check_fingerprints(members, measured_from)
    return TeacherPool(
        members, {name: measured_from[name] for name in teachers if name in measured_from}, autocast_dtype
    )


def _host(model: StudentModel, device: torch.device, placement: str, *, shared: bool) -> Host:
    """Tensors that the student uses too are not moved."""
    if placement == "sharded" and not shared:
        return ShardedHost(model, device)
    return Host(model, device, offload=placement == "offload", shared=shared)


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


class _Loader:
    def __init__(self, student: StudentModel, dtype: torch.dtype, trust_remote_code: bool, share: bool):
        self.student = student
        self.dtype = dtype
        self.trust_remote_code = trust_remote_code
        self.share = share

    def reference(self, role: str, given: Teacher | None) -> tuple[StudentModel, bool, str | None]:
        """The reference model, whether it shares the student's tensors, and the adapter that makes it the reference."""
        if given is not None:
            return self.full(role, given)
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

    def full(self, role: str, teacher: Teacher) -> tuple[StudentModel, bool, str | None]:
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
        is_student = given is self.student or given is base
        model, shared = (frozen_twin(given), True) if is_student or teacher.adapter is not None else (given, False)
        if is_student:
            model, shared = self._own(model)
        if teacher.adapter is not None:
            model = self.add_adapter(model, "teacher", teacher)
            model.set_adapter("teacher", inference_mode=True)
        return model, shared, model.active_adapter if isinstance(model, PeftModel) else None

    def _read(self, role: str, teacher: Teacher) -> PreTrainedModel:
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                teacher.model,
                revision=teacher.revision,
                dtype=teacher.dtype or self.dtype,
                trust_remote_code=self.trust_remote_code,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise ValueError(
                f"{role}: cannot load {teacher.source!r} ({error}). Check the path or Hub id, and that its files are "
                "complete."
            ) from error
        if report["missing_keys"]:
            raise ValueError(
                f"{role}: {teacher.source!r} has no weights for {', '.join(sorted(report['missing_keys'])[:3])}: they "
                "would be random. Save the complete checkpoint again."
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
