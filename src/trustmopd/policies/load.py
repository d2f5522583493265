"""From the graph of the policies to a `TeacherPool`: load each set of weights once, and put adapters on it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel

from trustmopd.checkpoints.loading import load_complete, whole_loading
from trustmopd.heads import Head
from trustmopd.policies.fingerprint import fingerprint, fingerprint_tensors
from trustmopd.policies.graph import PolicyGraph, Weights
from trustmopd.policies.hosts.offload import OffloadedHost
from trustmopd.policies.hosts.resident import ResidentHost
from trustmopd.policies.hosts.sharded import ShardedHost
from trustmopd.policies.pool import UNKNOWN, LocalMember, Member, Origin, TeacherPool
from trustmopd.policies.preflight.duplicates import adapter_settings, check_fingerprints, same_model
from trustmopd.policies.teacher import Teacher, model_id
from trustmopd.recipe.teacher_source import OFFLOAD, RAY, RESIDENT, SHARDED

if TYPE_CHECKING:
    from trustmopd.policies.hosts.ray.policies import RayPolicies

StudentModel: TypeAlias = PreTrainedModel | PeftModel

#: By place; in an actor on Ray weights are resident.
HOSTS: dict[str, type[ResidentHost]] = {
    RESIDENT: ResidentHost,
    OFFLOAD: OffloadedHost,
    SHARDED: ShardedHost,
    RAY: ResidentHost,
}


@whole_loading()
def build_pool(
    graph: PolicyGraph,
    student: StudentModel,
    *,
    device: torch.device,
    dtype: torch.dtype,
    share: bool = True,
    autocast_dtype: torch.dtype | None = None,
    trust_remote_code: bool = False,
    elsewhere: "RayPolicies | None" = None,
    vocab_size: int | None = None,
    views: Mapping[str, str] = MappingProxyType({}),
) -> TeacherPool:
    """The initial student of the graph is the student as it is now. With `share`, the reference and all adapters use a
    LoRA student's frozen weights. Policies on Ray are loaded by `elsewhere`. `vocab_size` counts
    the rows of a head that are no padding. `views` marks what policies with a view of their own read."""
    loader = Loader(dtype, student=student, share=share, trust_remote_code=trust_remote_code)
    if elsewhere is not None:
        elsewhere.start(graph.at(RAY), loader)  # they load while the others do
    found: dict[str, Member] = {}
    for weights in graph.weights:
        if weights.on != RAY:
            found |= load_weights(weights, loader, device)
    if elsewhere is not None:
        found |= elsewhere.members()
    marks = {name: (member.origin.fingerprint, views.get(name)) for name, member in found.items()}
    first = graph.first_copies(lambda one, other: marks[one] == marks[other])
    members = {name: found[name] for name in graph.policies if name in {*graph.used, *first.values()}}
    pool = TeacherPool(members, *_references(graph, first), autocast_dtype, elsewhere, vocab_size)
    check_fingerprints(members, pool.references, marks)
    return pool


def _references(graph: PolicyGraph, first: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """That of each teacher which has one, and that from which the target starts."""
    measured_from = {name: first[each.reference] for name, each in graph.teachers.items() if each.reference}
    return measured_from, first[graph.initial] if graph.initial else None


def unloaded_pool(graph: PolicyGraph, student: Teacher, views: Mapping[str, str]) -> TeacherPool:
    """What is known of a pool before its weights are loaded."""

    def is_copy(one: str, other: str) -> bool:
        checkpoints = [graph.references[name].checkpoint or student for name in (one, other)]
        return views.get(one) == views.get(other) and same_model(*checkpoints)

    members = {name: Member(name, Origin(policy.source, UNKNOWN)) for name, policy in graph.policies.items()}
    return TeacherPool(members, *_references(graph, graph.first_copies(is_copy)))


def load_weights(weights: Weights, loader: "Loader", device: torch.device) -> dict[str, LocalMember]:
    """The policies of one set of weights."""
    base, shared, own_adapter = loader.weights(weights.role, weights.checkpoint)
    mark, size = fingerprint(base), sum(p.numel() for p in base.parameters())  # before they are spread
    marks = dict.fromkeys(weights.names, mark)
    active: dict[str, str] = {}
    for name, teacher in weights.adapters.items():
        loaded = {(weights.adapters[other].adapter, weights.adapters[other].revision): other for other in active}
        first = loaded.get((teacher.adapter, teacher.revision), name)  # one adapter may be read under several views
        active[name] = f"teacher-{first}"
        if first == name:
            base = loader.add_adapter(base, active[name], teacher)
        tensors = get_peft_model_state_dict(base, adapter_name=active[name])
        settings = adapter_settings(base.peft_config[active[name]])
        marks[name] = f"{mark}+{fingerprint_tensors(tensors.items(), settings)}"
    # Tensors that the student uses too are not moved.
    kind = HOSTS[RESIDENT if shared else weights.on]
    host, head = kind(base.eval(), device), Head.of(base)
    return {
        name: LocalMember(name, Origin(source, marks[name], size), host, head, active.get(name, own_adapter))
        for name, source in weights.sources.items()
    }


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


@dataclass(frozen=True)
class Loader:
    """`device_map` spreads what is read over several GPUs. Without a `student`, no weights are the student's."""

    dtype: torch.dtype
    student: StudentModel | None = None
    share: bool = True
    trust_remote_code: bool = False
    device_map: str | None = None

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
