"""All policies of a run that live on Ray: started by the first process, found by the others, asked by every one."""

import copy
import logging
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trustmopd.policies.answers import Answer, Rollouts
from trustmopd.policies.graph import Weights, role_of
from trustmopd.policies.hosts.ray.actor import Order, PolicyActor, Question, Terms
from trustmopd.policies.hosts.ray.answer import RemoteAnswer
from trustmopd.policies.hosts.ray.cluster import NAMESPACE, Cluster, check_room, is_connected, open_cluster
from trustmopd.policies.hosts.ray.host import LOADING, RayHost, collect, shared_by_tokens
from trustmopd.policies.load import Loader, StudentModel
from trustmopd.policies.pool import Member, Timer, Usage
from trustmopd.policies.teacher import Teacher

logger = logging.getLogger(__name__)

#: How often an actor is started again in a run: one that dies while it loads must not do so for ever.
RESTARTS = 10


class RayPolicies:
    """The first process starts the actors, which end with it. `decide` gives every process its result or error."""

    def __init__(self, terms: Terms, decide: Callable[[Callable[[], Any]], Any]):
        self.terms = terms
        self.devices: dict[str, float] = {}
        self._decide = decide
        self._cluster: Cluster | None = None
        self._connected_before = is_connected()
        self._made: list[tuple[list[Any], list[Any]]] = []  # orders and actors, in the process that made them
        self._hosts: list[RayHost] = []
        self._candidates: tuple[Tensor, Any] | None = None  # the last, which every policy is asked for in turn

    def start(self, weights: Sequence[Weights], loader: Loader) -> None:
        try:
            self._cluster, self.devices = self._decide(lambda: self._make_actors(weights, loader))
            self._cluster.connect()
            made = self._made or [self._find(number, each) for number, each in enumerate(weights)]
            self._hosts = [
                RayHost(each.names, *parts, self.terms.limit) for each, parts in zip(weights, made, strict=True)
            ]
        except BaseException:
            self.close()
            raise

    def _names(self, number: int, weights: Weights) -> list[str]:
        return [f"{self.terms.run_id}/{number}/{replica}" for replica in range(weights.replicas)]

    def _find(self, number: int, weights: Weights) -> tuple[list[Any], list[Any]]:
        import ray

        actors = [ray.get_actor(name, NAMESPACE) for name in self._names(number, weights)]
        # It is answered after loading, which the first process has asked for.
        return collect(actors[0].order.remote, weights.role, max(self.terms.limit, LOADING)), actors

    def _make_actors(self, asked: Sequence[Weights], loader: Loader) -> tuple[Cluster, dict[str, float]]:
        terms, actors = self.terms, sum(weights.replicas for weights in asked)
        where = "on this machine" if terms.address is None else f"in the cluster at {terms.address}"
        policies = ", ".join(role_of(name) for weights in asked for name in weights.names)
        logger.warning("Ray is starting %d processes %s: %s.", actors, where, policies)  # which takes a while
        import ray

        sent = [_sendable(weights, loader) for weights in asked]
        self._cluster = open_cluster(terms.address, cpus=actors, shared_memory=2 * sum(map(_bytes, sent)))
        default = 1.0 if terms.may_use_gpus and ray.cluster_resources().get("GPU") else 0.0
        sent = [replace(weights, gpus=default if weights.gpus is None else weights.gpus) for weights in sent]
        check_room(sent)
        kind = ray.remote(PolicyActor)
        devices = {}
        for number, weights in enumerate(sent):
            order = ray.put(Order(weights, terms))
            options = {
                "num_gpus": weights.gpus,
                "num_cpus": 0 if weights.gpus else 1,
                "max_restarts": RESTARTS,
                "max_task_retries": -1,  # every call can be made again
                "scheduling_strategy": "SPREAD",
                "namespace": NAMESPACE,
            }
            made = [kind.options(name=name, **options).remote() for name in self._names(number, weights)]
            for actor in made:
                actor.load.remote([order])  # before another process finds it
            self._made.append(([order], made))
            devices[", ".join(weights.names)] = (weights.gpus or 1.0) * weights.replicas
        return self._cluster, devices

    def members(self) -> dict[str, Member]:
        try:
            found = [host.loaded() for host in self._hosts]
        except BaseException:
            self.close()
            raise
        return {name: Member(name, origin) for loaded in found for name, origin in loaded.origins.items()}

    def ask(self, rollouts: Rollouts, names: Collection[str], timer: Timer) -> dict[str, Answer]:
        responses = (rollouts.response_mask != 0).sum(dim=1).tolist()
        lengths = (rollouts.attention_mask != 0).sum(dim=1).tolist()
        sent, size = self._put(rollouts)
        answers: dict[str, Answer] = {}
        for host in self._hosts:
            mine = [name for name in host.names if name in names]
            rows = {name: rollouts.rows_of(name) for name in mine}
            questions = {}
            for replica, part in enumerate(shared_by_tokens(rows, lengths, len(host.replicas))):
                if part:
                    questions[replica] = Question(uuid.uuid4().hex, host.order, [sent], part)
                    host.replicas[replica].read.remote(questions[replica])
            for name in mine:
                host.usage[name].bytes += size * len(rows[name]) / max(1, len(lengths))
                answers[name] = RemoteAnswer(name, host, questions, responses, self._put_candidates, timer)
        return answers

    def _put(self, rollouts: Rollouts) -> tuple[Any, int]:
        """Into shared memory once, from where it is copied once to every node; and its bytes."""
        import ray

        self._candidates = None
        sent = _arrays(rollouts) | {"views": {name: _arrays(view) for name, view in rollouts.views.items()}}
        parts = [part for each in (sent, *sent["views"].values()) for part in each.values()]
        return ray.put(sent), sum(part.nbytes for part in parts if isinstance(part, np.ndarray))

    def _put_candidates(self, ids: Tensor) -> Any:
        import ray

        if self._candidates is None or self._candidates[0] is not ids:
            self._candidates = ids, ray.put(ids.to(torch.int32).cpu().numpy())
        return self._candidates[1]

    @property
    def gaps(self) -> dict[str, float]:
        """Nats by which policies that vLLM reads differ from transformers' forward."""
        return {name: gap for host in self._hosts for name, gap in host.gaps.items()}

    def take_usage(self) -> dict[str, Usage]:
        taken = {name: usage for host in self._hosts for name, usage in host.usage.items()}
        for host in self._hosts:
            host.usage = {name: Usage() for name in host.names}
        return taken

    def close(self) -> None:
        """Ends the actors, if this process owns them, and its connection, if it was made here."""
        import ray

        if self._cluster is None or not ray.is_initialized():
            return
        for _, actors in self._made:
            for actor in actors:
                ray.kill(actor)
        self._hosts, self._made = [], []
        if not self._connected_before:
            ray.shutdown()  # and with it the cluster, if it was started here
        self._cluster = None


def _arrays(rollouts: Rollouts) -> dict[str, Any]:
    tensors = {
        "input_ids": rollouts.input_ids.to(torch.int32),
        "attention_mask": rollouts.attention_mask != 0,
        "response_mask": rollouts.response_mask != 0,
    }
    others = {name: getattr(rollouts, name) for name in ("at_a_time", "max_tokens", "bytes_on_device", "swap")}
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()} | others


def _sendable(weights: Weights, loader: Loader) -> Weights:
    """With a model that is in memory, as the initial student is, in host memory: from there it is sent."""
    given = weights.checkpoint or Teacher(model=loader.weights(weights.role, None)[0])
    if isinstance(given.model, nn.Module):
        if (weights.gpus or 0) > 1:
            raise ValueError(
                f"{weights.role}: gpus = {weights.gpus:g}, but a model in memory, as the initial student is, cannot be "
                "spread over several GPUs. Save it, and give its path; for adapters over it, as `reference`."
            )
        given = replace(given, model=_on_host(given.model))
    return replace(weights, checkpoint=given)


def _on_host(model: StudentModel) -> StudentModel:
    """A copy, since tensors may be the student's own."""
    tensors = {
        id(tensor): nn.Parameter(tensor.detach().cpu(), requires_grad=False)
        if isinstance(tensor, nn.Parameter)
        else tensor.detach().cpu()
        for tensor in (*model.parameters(), *model.buffers())
    }
    return copy.deepcopy(model, tensors)


def _bytes(weights: Weights) -> int:
    """Of those that are sent."""
    model = weights.checkpoint.model if weights.checkpoint is not None else None
    return sum(tensor.nbytes for tensor in model.parameters()) if isinstance(model, nn.Module) else 0
