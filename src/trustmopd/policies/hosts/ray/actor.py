"""The process in which a policy lives: a pool of its own, loaded by the code that loads a local one.

Every call carries the whole question, so a process that was started anew answers as the old one would have: it loads,
reads, and goes on.
"""

import os
import platform
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trustmopd.policies.answers import Answer, Rollouts
from trustmopd.policies.graph import Weights, role_of
from trustmopd.policies.hosts.ray.vllm_pool import VLLMPool, load_vllm
from trustmopd.policies.load import Loader, load_weights
from trustmopd.policies.pool import Origin, TeacherPool
from trustmopd.policies.preflight.checks import Checks, check_facts, facts_of_checkpoint
from trustmopd.recipe.rollout_engines import VLLM


@dataclass(frozen=True)
class Terms:
    """How policies are loaded and asked: fields of the configuration, and what a policy is checked against. No prompt
    with its response has more than `longest` tokens, in any view."""

    run_id: str
    address: str | None
    limit: float
    dtype: torch.dtype
    autocast_dtype: torch.dtype | None
    trust_remote_code: bool
    vocab_size: int | None
    may_use_gpus: bool
    checks: Checks | None
    longest: int = 0


@dataclass(frozen=True)
class Order:
    """What an actor loads: weights that are not the initial student's; those with more than 1 GPU are spread over
    them."""

    weights: Weights
    terms: Terms


@dataclass(frozen=True)
class Loaded:
    """`born` is unique to each process. `gaps` are the nats by which vLLM differs from transformers, where it reads."""

    born: str
    process: int
    origins: Mapping[str, Origin]
    gaps: Mapping[str, float] = field(default_factory=dict)

    @property
    def fingerprints(self) -> dict[str, str | None]:
        return {name: origin.fingerprint for name, origin in self.origins.items()}


#: A row, and where its tokens begin and end among all that are asked for.
Span = tuple[int, int, int]


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

    arrays: Sequence[np.ndarray]
    seconds: float
    born: str


class PolicyActor:
    """Every call carries the order, so a restarted actor can load itself."""

    def __init__(self) -> None:
        self._order: list[Any] = []
        self._born = uuid.uuid4().hex
        self._pool: TeacherPool | VLLMPool | None = None
        self._heads = torch.device("cpu")
        self._kept: dict[str, dict[str, Answer]] = {}
        self._reading: dict[tuple[str, str], float] = {}
        self._device = torch.device("cpu")

    def order(self) -> list[Any]:
        """For a process that did not give it."""
        return self._order

    def load(self, order: list[Any]) -> Loaded:
        self._order = order
        pool = self._loaded(order)
        origins = {name: member.origin for name, member in pool.members.items()}
        return Loaded(self._born, os.getpid(), origins, pool.gaps if isinstance(pool, VLLMPool) else {})

    def _loaded(self, given: list[Any]) -> TeacherPool | VLLMPool:
        if self._pool is None:
            import ray

            order: Order = ray.get(given[0])
            weights, terms = order.weights, order.terms
            if weights.gpus:
                self._device = _gpu(weights)
            self._order = given
            if terms.checks is not None:
                check_weights(weights, terms.checks)
            loader = Loader(terms.dtype, trust_remote_code=terms.trust_remote_code)
            if weights.engine == VLLM:
                self._pool = load_vllm(weights, loader, self._device, terms.longest, terms.vocab_size)
                self._heads = self._device
                return self._pool
            loader = replace(loader, device_map="auto" if (weights.gpus or 0) > 1 else None)
            members = load_weights(weights, loader, self._device)
            self._heads = next(iter(members.values())).head.weight.device
            self._pool = TeacherPool(members, {}, autocast_dtype=terms.autocast_dtype, vocab_size=terms.vocab_size)
        return self._pool

    def read(self, question: Question) -> None:
        """Keep what the policies think of these rollouts, unless that is done."""
        if question.key in self._kept:
            return
        import ray

        pool, kept = self._loaded(question.order), {}
        rollouts = self._rollouts(**ray.get(question.rollouts[0]))
        rollouts = replace(rollouts, bytes_on_device=rollouts.bytes_on_device / len(question.rows))
        for name, rows in question.rows.items():
            began = time.perf_counter()
            kept[name] = pool.ask(replace(rollouts, rows={name: rows}))[name]
            self._reading[question.key, name] = self._since(began)
        self._kept[question.key] = kept

    def _rollouts(self, views: Mapping[str, dict[str, Any]] = MappingProxyType({}), **sent: Any) -> Rollouts:
        tensors = {name: torch.tensor(value) for name, value in sent.items() if isinstance(value, np.ndarray)}
        on_device = {name: tensor.to(self._device) for name, tensor in tensors.items()}
        on_device["input_ids"] = on_device["input_ids"].long()
        return Rollouts(**{**sent, **on_device}, views={name: self._rollouts(**view) for name, view in views.items()})

    def logits_at(self, question: Question, name: str, spans: Sequence[Span], ids: np.ndarray) -> Reply:
        wanted = torch.from_numpy(np.concatenate([ids[start:end] for _, start, end in spans])).long()
        rows = [row for row, _, _ in spans]
        return self._reply(question, name, lambda answer, device: [answer.logits_at(rows, wanted.to(device))])

    def top(self, question: Question, name: str, spans: Sequence[Span], k: int) -> Reply:
        rows = [row for row, _, _ in spans]
        return self._reply(question, name, lambda answer, device: answer.top(rows, k))

    def _reply(
        self, question: Question, name: str, compute: Callable[[Answer, torch.device], Sequence[Tensor]]
    ) -> Reply:
        self.read(question)
        began, device = time.perf_counter(), self._heads
        with _current(device):
            arrays = [tensor.cpu().numpy() for tensor in compute(self._kept[question.key][name], device)]
        seconds = self._since(began) + self._reading.pop((question.key, name), 0.0)
        return Reply(arrays, seconds, self._born)

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


def _gpu(weights: Weights) -> torch.device:
    """The first of those that Ray has given to this process, and that torch must see."""
    if torch.cuda.device_count() < (weights.gpus or 0):
        raise ValueError(
            f"{weights.role}: gpus = {weights.gpus:g}, but torch {torch.__version__} on {platform.node()} sees "
            f"{torch.cuda.device_count()}. Install a torch with GPU support there, or set gpus: 0."
        )
    return torch.device("cuda")


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, kernels start on this device: the head of a model on several GPUs may be on another than its first."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def check_weights(weights: Weights, checks: Checks) -> None:
    """Preflight of one set of weights and its adapters, here. Weights that were sent were checked where they were."""
    bare = weights.checkpoint
    assert bare is not None
    was_sent = not isinstance(bare.model, (str, Path))
    given = {weights.role: replace(bare, model=None) if was_sent else bare}
    given |= {role_of(name): adapter for name, adapter in weights.adapters.items()}
    facts, under = [], checks.student
    for role, checkpoint in given.items():
        facts += facts_of_checkpoint(role, checkpoint, bare.model, under, checks.trust_remote_code)
        under = checks.student if was_sent else facts[0]
    # Templates of their own were checked where prompts are rendered.
    check_facts(checks, [replace(each, own_template=weights.has_own_template) for each in facts])
