"""The frozen policies of a run once they are loaded, and how they are asked.

Each reads the rollouts once; its output head is applied later, to the candidates alone (`answers.py`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch
from peft import PeftModel
from torch import Tensor, nn

from trustmopd.heads import Head
from trustmopd.policies.answers import Answers, LocalAnswer, Rollouts, Shelf
from trustmopd.policies.backbone import backbone_of
from trustmopd.policies.graph import is_reference
from trustmopd.policies.hosts.resident import ResidentHost

if TYPE_CHECKING:
    from trustmopd.policies.hosts.ray.policies import RayPolicies

Timer = Callable[[str], AbstractContextManager[None]]


#: The fingerprint of weights that are not loaded yet: any may be theirs.
UNKNOWN = "not loaded yet"


@dataclass(frozen=True)
class Origin:
    """Where weights come from, their fingerprint and number; the last two are None if the rule does not load them.
    `parameters` are without the adapters of teachers. `view` is how the policy reads the prompts, and a hash of what it
    reads, if not as the student does."""

    source: str
    fingerprint: str | None
    parameters: int | None = None
    view: str | None = None


@dataclass(frozen=True)
class Member:
    """One policy, loaded: here (`LocalMember`) or in another process."""

    name: str
    origin: Origin


@dataclass(frozen=True)
class LocalMember(Member):
    """The model of `host` or, with an `adapter`, that adapter on it."""

    host: ResidentHost
    head: Head
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


@dataclass
class Usage:
    """Of a policy elsewhere: seconds that it computed and that this process waited for it, bytes that travelled."""

    seconds: float = 0.0
    waiting: float = 0.0
    bytes: float = 0.0


class TeacherPool:
    """The frozen policies of a run: the teachers in use, in order, and their references if the score needs them.
    `references` names the reference of each teacher, `initial` the policy that the target starts from, if it starts
    from one; `elsewhere` asks those in other processes."""

    def __init__(
        self,
        members: Mapping[str, Member],
        references: Mapping[str, str],
        initial: str | None = None,
        autocast_dtype: torch.dtype | None = None,
        elsewhere: "RayPolicies | None" = None,
        vocab_size: int | None = None,
    ):
        self.members = dict(members)
        self.references = dict(references)
        self.initial = initial
        self.autocast_dtype = autocast_dtype
        self.elsewhere = elsewhere
        self.vocab_size = vocab_size

    @property
    def teachers(self) -> list[str]:
        return [name for name in self.members if not is_reference(name)]

    @torch.no_grad()
    def ask(self, rollouts: Rollouts, *, timer: Timer = lambda phase: nullcontext()) -> Answers:
        """Let every policy read its rows once; policies on the same host take turns. Those elsewhere are sent the
        question first, and read it meanwhile."""
        answers = self.elsewhere.ask(rollouts, self.members, timer) if self.elsewhere is not None else {}
        local = {name: member for name, member in self.members.items() if isinstance(member, LocalMember)}
        by_host: dict[ResidentHost, list[LocalMember]] = {}
        for member in local.values():
            if rollouts.rows_of(member.name) or member.host.asks_everyone:
                by_host.setdefault(member.host, []).append(member)
        shelf = Shelf(rollouts.bytes_on_device)
        states: dict[str, dict[int, Tensor]] = {name: {} for name in local}
        for (host, members), following in zip_longest(by_host.items(), list(by_host)[1:]):
            read = {member.name: rollouts.read_by(member.name) for member in members}
            passes = {name: each.passes(rollouts.rows_of(name)) for name, each in read.items()}
            with timer("teachers"), host.on_device(sum(map(len, passes.values()))):
                if following is not None:
                    following.prefetch()
                for member in members:
                    with timer("reference") if is_reference(member.name) else nullcontext():
                        for rows in passes[member.name]:
                            kept = shelf.keep(self._hidden_states(member, read[member.name], rows))
                            tokens = (rollouts.response_mask[rows] != 0).sum(dim=1).tolist()
                            states[member.name].update(zip(rows, kept.split(tokens), strict=True))
        for name, member in local.items():
            answers[name] = LocalAnswer(name, member.head, states[name], self.vocab_size, rollouts.read_by(name).swap)
        return Answers({name: answers[name] for name in self.members})

    def close(self) -> None:
        """End what lives in other processes."""
        if self.elsewhere is not None:
            self.elsewhere.close()

    def _hidden_states(self, member: LocalMember, rollouts: Rollouts, rows: list[int]) -> Tensor:
        """One forward pass: the state before each response token of these rows, row after row."""
        autocast = (
            torch.autocast(rollouts.input_ids.device.type, self.autocast_dtype)
            if self.autocast_dtype is not None
            else nullcontext()
        )
        with member.active() as backbone, autocast:
            return rollouts.sequences(rows, backbone).states(backbone)
