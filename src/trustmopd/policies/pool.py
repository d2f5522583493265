"""Where the frozen models are kept, and how they are asked.

A `Host` is one set of weights; a `Member` is one policy on it: the model itself, one of its adapters, or its bare base.
Each member reads the rollouts once; its output head is applied later, to the candidates alone (`answers.py`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any, Protocol

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from trustmopd.heads import Head
from trustmopd.policies.answers import Answer, Answers, LocalAnswer, Rollouts, Shelf
from trustmopd.policies.backbone import backbone_of
from trustmopd.policies.graph import Unit
from trustmopd.policies.references import is_reference

Timer = Callable[[str], AbstractContextManager[None]]


class Host:
    """One frozen model on `device`. With `offload`, its weights stay in host memory and are copied to the device for
    each pass; nothing is copied back. The output head, which is needed later, always stays on the device. On a GPU the
    copy can start during the pass of another model (`prefetch`)."""

    #: Whether all processes must ask it at the same time.
    asks_everyone = False

    def __init__(
        self, model: PreTrainedModel | PeftModel, device: torch.device, *, offload: bool = False, shared: bool = False
    ):
        self.model = model
        self.device = device
        self._in_host_memory: list[nn.Parameter | Tensor] = []
        self._arriving: list[Tensor] | None = None
        if shared or not offload:  # tensors that the student uses too are never moved away
            if getattr(model, "hf_device_map", None) is None:  # a model that is spread over several devices stays so
                model.to(device)
            return
        model.to("cpu")
        head = model.get_output_embeddings()
        head.to(device)
        on_device = {id(tensor) for tensor in head.parameters()}
        for tensor in (*model.parameters(), *model.buffers()):
            if id(tensor) not in on_device:
                tensor.data = tensor.data.pin_memory() if device.type == "cuda" else tensor.data
                self._in_host_memory.append(tensor)

    def prefetch(self) -> None:
        """Start to copy the weights to the device, where they need memory besides the model that is computing."""
        if self._arriving is None:
            with _copying(self.device):
                self._arriving = [
                    tensor.data.to(self.device, non_blocking=True, copy=True) for tensor in self._in_host_memory
                ]

    @contextmanager
    def on_device(self, passes: int) -> Iterator[None]:
        """Inside, this process makes this many passes."""
        kept = [tensor.data for tensor in self._in_host_memory]
        self.prefetch()
        arrived, self._arriving = self._arriving or [], None
        if self.device.type == "cuda":
            computing = torch.cuda.current_stream(self.device)
            computing.wait_stream(_copy_stream(self.device))
            for data in arrived:
                data.record_stream(computing)  # so that their memory is not reused before the pass ends
        for tensor, data in zip(self._in_host_memory, arrived, strict=True):
            tensor.data = data
        try:
            yield
        finally:
            for tensor, data in zip(self._in_host_memory, kept, strict=True):
                tensor.data = data


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _copying(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.stream(_copy_stream(device)) if device.type == "cuda" else nullcontext()


@dataclass(frozen=True)
class Member:
    """One policy. `parameters` are those of its weights, without the adapters of teachers. `adapter` is the adapter to
    activate; None for the host without adapters."""

    name: str
    host: Host
    head: Head
    source: str
    fingerprint: str
    parameters: int
    adapter: str | None = None

    @contextmanager
    def active(self) -> Iterator[nn.Module]:
        """The backbone that computes this policy's last hidden state."""
        model = self.host.model
        backbone = backbone_of(model)
        if not isinstance(model, PeftModel):
            yield backbone
        elif self.adapter is None:
            with model.disable_adapter():
                yield backbone
            model.requires_grad_(False)  # PEFT makes an adapter trainable when it is enabled again
        else:
            model.set_adapter(self.adapter, inference_mode=True)
            yield backbone


@dataclass(frozen=True)
class RemoteMember:
    """A policy that is read in another process."""

    name: str
    source: str
    fingerprint: str
    parameters: int


@dataclass
class Usage:
    """Of a policy elsewhere: seconds that it computed and that this process waited for it, bytes that travelled."""

    seconds: float = 0.0
    waiting: float = 0.0
    bytes: float = 0.0


class Elsewhere(Protocol):
    """The policies of a pool that live in other processes (`remote/`)."""

    def start(self, units: Sequence[Unit], loader: Any) -> None:
        """Let them load; nothing waits."""

    def members(self) -> dict[str, RemoteMember]:
        """Once they are loaded."""

    def ask(self, rollouts: Rollouts, names: Collection[str], timer: Timer) -> dict[str, Answer]:
        """Send the question to these policies; nothing waits."""

    def take_usage(self) -> dict[str, Usage]:
        """Of each policy, since the last call."""

    @property
    def devices(self) -> dict[str, float]:
        """GPUs by policy, or processes where there are none. Policies that share them are named together."""

    def close(self) -> None: ...


class TeacherPool:
    """The frozen policies of a run: the teachers in use, in order, and their references if the score needs them.
    `references` names the reference of each teacher."""

    def __init__(
        self,
        members: Mapping[str, Member | RemoteMember],
        references: Mapping[str, str],
        autocast_dtype: torch.dtype | None = None,
        elsewhere: Elsewhere | None = None,
    ):
        self.members = dict(members)
        self.references = dict(references)
        self.autocast_dtype = autocast_dtype
        self.elsewhere = elsewhere

    @property
    def teachers(self) -> list[str]:
        return [name for name in self.members if not is_reference(name)]

    @torch.no_grad()
    def ask(self, rollouts: Rollouts, *, timer: Timer = lambda phase: nullcontext()) -> Answers:
        """Let every policy read its rows once; policies on the same host take turns. Those elsewhere are sent the
        question first, and read it meanwhile."""
        answers = self.elsewhere.ask(rollouts, self.members, timer) if self.elsewhere is not None else {}
        local = {name: member for name, member in self.members.items() if isinstance(member, Member)}
        by_host: dict[Host, list[Member]] = {}
        for member in local.values():
            if rollouts.rows_of(member.name) or member.host.asks_everyone:
                by_host.setdefault(member.host, []).append(member)
        shelf = Shelf(rollouts.bytes_on_device)
        states: dict[str, dict[int, Tensor]] = {name: {} for name in local}
        for (host, members), following in zip_longest(by_host.items(), list(by_host)[1:]):
            passes = {member.name: rollouts.passes(rollouts.rows_of(member.name)) for member in members}
            with timer("teachers"), host.on_device(sum(map(len, passes.values()))):
                if following is not None:
                    following.prefetch()
                for member in members:
                    with timer("reference") if is_reference(member.name) else nullcontext():
                        for rows in passes[member.name]:
                            kept = shelf.keep(self._hidden_states(member, rollouts, rows))
                            tokens = (rollouts.response_mask[rows] != 0).sum(dim=1).tolist()
                            states[member.name].update(zip(rows, kept.split(tokens), strict=True))
        answers |= {name: LocalAnswer(name, member.head, states[name]) for name, member in local.items()}
        return Answers({name: answers[name] for name in self.members})

    def close(self) -> None:
        """End what lives in other processes."""
        if self.elsewhere is not None:
            self.elsewhere.close()

    def _hidden_states(self, member: Member, rollouts: Rollouts, rows: list[int]) -> Tensor:
        """One forward pass: the state before each response token of these rows, row after row."""
        autocast = (
            torch.autocast(rollouts.input_ids.device.type, self.autocast_dtype)
            if self.autocast_dtype is not None
            else nullcontext()
        )
        with member.active() as backbone, autocast:
            return rollouts.sequences(rows, backbone).states(backbone)
