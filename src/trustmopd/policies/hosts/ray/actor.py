"""The process in which a policy lives: a pool of its own, loaded by the code that loads a local one.

Every call carries the whole question, so a process that was started anew answers as the old one would have: it loads,
reads, and goes on.
"""

import os
import platform
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trustmopd.policies.answers import Answer, Rollouts
from trustmopd.policies.graph import Unit
from trustmopd.policies.load import Loader, load_unit
from trustmopd.policies.pool import TeacherPool
from trustmopd.policies.preflight.checks import check_facts
from trustmopd.policies.preflight.model_facts import ModelFacts, facts_of, facts_of_adapter
from trustmopd.policies.references import role_of


@dataclass(frozen=True)
class Checks:
    """What a policy is compared with before its weights are loaded, on the machine that has its files."""

    student: ModelFacts
    num_candidates: int
    longest: int
    allow_template_mismatch: bool


@dataclass(frozen=True)
class Order:
    """What an actor loads: a unit that has its weights; one with more than 1 GPU is spread over them."""

    unit: Unit
    dtype: torch.dtype
    autocast_dtype: torch.dtype | None
    trust_remote_code: bool
    checks: Checks | None


@dataclass(frozen=True)
class Loaded:
    """`born` is unique to each process."""

    born: str
    process: int
    sources: Mapping[str, str]
    fingerprints: Mapping[str, str]
    parameters: Mapping[str, int]


@dataclass(frozen=True)
class Question:
    """`order` and `rollouts` are lists of one reference, which Ray passes on as it is; `rows` are by policy."""

    key: str
    order: list[Any]
    rollouts: list[Any]
    rows: Mapping[str, list[int]]


@dataclass(frozen=True)
class Reply:
    """`seconds` are those of the actor, for this and, the first time, for reading."""

    logits: np.ndarray
    seconds: float
    born: str


def packed(rollouts: Rollouts) -> dict[str, Any]:
    """As it is sent."""
    arrays = {
        "input_ids": rollouts.input_ids.to(torch.int32),
        "attention_mask": rollouts.attention_mask != 0,
        "response_mask": rollouts.response_mask != 0,
    }
    budget = {name: getattr(rollouts, name) for name in ("at_a_time", "max_tokens", "bytes_on_device")}
    return {name: array.cpu().numpy() for name, array in arrays.items()} | budget


class PolicyActor:
    """Every call carries the order, so a restarted actor can load itself."""

    def __init__(self) -> None:
        self._order: list[Any] = []
        self._born = uuid.uuid4().hex
        self._pool: TeacherPool | None = None
        self._heads: dict[str, torch.device] = {}
        self._kept: dict[str, dict[str, Answer]] = {}
        self._reading: dict[tuple[str, str], float] = {}
        self._device = torch.device("cpu")

    def order(self) -> list[Any]:
        """For a process that did not give it."""
        return self._order

    def load(self, order: list[Any]) -> Loaded:
        self._order = order
        members = self._loaded(order).members
        return Loaded(
            self._born,
            os.getpid(),
            {name: member.source for name, member in members.items()},
            {name: member.fingerprint for name, member in members.items()},
            {name: member.parameters for name, member in members.items()},
        )

    def _loaded(self, given: list[Any]) -> TeacherPool:
        if self._pool is None:
            import ray

            order: Order = ray.get(given[0])
            if order.unit.gpus:
                self._device = _gpu(order.unit)
            self._order = given
            if order.checks is not None:
                check_unit(order.unit, order.checks, order.trust_remote_code)
            several = (order.unit.gpus or 0) > 1
            loader = Loader(
                order.dtype, trust_remote_code=order.trust_remote_code, device_map="auto" if several else None
            )
            members = load_unit(order.unit, loader, self._device)
            self._heads = {name: member.head.weight.device for name, member in members.items()}
            self._pool = TeacherPool(members, {}, order.autocast_dtype)
        return self._pool

    def read(self, question: Question) -> None:
        """Keep what the policies think of these rollouts, unless that is done."""
        if question.key in self._kept:
            return
        import ray

        pool, kept = self._loaded(question.order), {}
        sent = ray.get(question.rollouts[0])
        tensors = {name: torch.tensor(value) for name, value in sent.items() if isinstance(value, np.ndarray)}
        on_device = {name: tensor.to(self._device) for name, tensor in tensors.items()}
        on_device["input_ids"] = on_device["input_ids"].long()
        rollouts = Rollouts(**{**sent, **on_device})
        rollouts = replace(rollouts, bytes_on_device=rollouts.bytes_on_device / len(question.rows))
        for name, rows in question.rows.items():
            began = time.perf_counter()
            kept[name] = pool.ask(replace(rollouts, rows={name: rows}))[name]
            self._reading[question.key, name] = self._since(began)
        self._kept[question.key] = kept

    def logits_at(self, question: Question, name: str, spans: Sequence[tuple[int, int, int]], ids: np.ndarray) -> Reply:
        """`spans` have a row, and where its tokens begin and end in `ids`."""
        self.read(question)
        began = time.perf_counter()
        wanted = np.concatenate([ids[start:end] for _, start, end in spans])
        on_device = torch.from_numpy(wanted).to(self._heads[name]).long()
        with _current(on_device.device):
            logits = self._kept[question.key][name].logits_at([row for row, _, _ in spans], on_device)
        array = logits.cpu().numpy()
        seconds = self._since(began) + self._reading.pop((question.key, name), 0.0)
        return Reply(array, seconds, self._born)

    def release(self, key: str) -> None:
        self._kept.pop(key, None)
        self._reading = {place: seconds for place, seconds in self._reading.items() if place[0] != key}

    def kept(self) -> int:
        """The number of questions that are not released."""
        return len(self._kept)

    def _since(self, began: float) -> float:
        if self._device.type == "cuda":
            for gpu in range(torch.cuda.device_count()):
                torch.cuda.synchronize(gpu)
        return time.perf_counter() - began


def _gpu(unit: Unit) -> torch.device:
    """The first of those that Ray has given to this process, and that torch must see."""
    if torch.cuda.device_count() < (unit.gpus or 0):
        raise ValueError(
            f"{unit.role}: gpus = {unit.gpus:g}, but torch {torch.__version__} on {platform.node()} sees "
            f"{torch.cuda.device_count()}. Install a torch with GPU support there, or set gpus: 0."
        )
    return torch.device("cuda")


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, kernels start on this device: the head of a model on several GPUs may be on another than its first."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def check_unit(unit: Unit, checks: Checks, trust_remote_code: bool) -> None:
    """Preflight of one set of weights and its adapters, here. Weights that were sent were checked where they were."""
    given, base, facts = unit.given, checks.student, []
    assert given is not None and given.model is not None
    if isinstance(given.model, (str, Path)):
        base = facts_of(unit.role, given.model, revision=given.revision, trust_remote_code=trust_remote_code)
        facts.append(base)
    adapters = {} if given.adapter is None else {unit.role: given}
    adapters |= {role_of(name): teacher for name, teacher in unit.adapters.items()}
    facts += [facts_of_adapter(role, each, given.model, base, trust_remote_code) for role, each in adapters.items()]
    check_facts(
        checks.student,
        facts,
        num_candidates=checks.num_candidates,
        longest=checks.longest,
        allow_template_mismatch=checks.allow_template_mismatch,
    )
