"""All policies of a run that live on Ray: started by the first process, found by the others, asked by every one."""

import copy
import logging
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from trustmopd.policies.answers import Answer, Rollouts
from trustmopd.policies.graph import Unit
from trustmopd.policies.hosts.ray.actor import Checks, Order, PolicyActor, Question
from trustmopd.policies.hosts.ray.answer import RemoteAnswer
from trustmopd.policies.hosts.ray.cluster import NAMESPACE, Cluster, check_room, is_connected, open_cluster
from trustmopd.policies.hosts.ray.host import LOADING, RayHost, collect, shared_by_tokens
from trustmopd.policies.hosts.ray.outbox import Outbox
from trustmopd.policies.load import Loader, StudentModel
from trustmopd.policies.pool import RemoteMember, Timer, Usage
from trustmopd.policies.references import role_of
from trustmopd.policies.teacher import Teacher

logger = logging.getLogger(__name__)

#: How often an actor is started again in a run: one that dies while it loads must not do so for ever.
RESTARTS = 10


@dataclass(frozen=True)
class Terms:
    """How policies are loaded and asked: fields of the configuration, and what a policy is checked against."""

    run_id: str
    address: str | None
    limit: float
    dtype: torch.dtype
    autocast_dtype: torch.dtype | None
    trust_remote_code: bool
    may_use_gpus: bool
    checks: Checks | None


class RayPolicies:
    """The first process starts the actors, which end with it. `decide` gives every process its result or error."""

    def __init__(self, terms: Terms, decide: Callable[[Callable[[], Any]], Any]):
        self.terms = terms
        self.devices: dict[str, float] = {}
        self._decide = decide
        self._cluster: Cluster | None = None
        self._connected_before = is_connected()
        self._units: list[Unit] = []
        self._made: list[tuple[list[Any], list[Any]]] = []  # orders and actors, in the process that made them
        self._hosts: list[RayHost] = []
        self._outbox = Outbox()

    def start(self, units: Sequence[Unit], loader: Loader) -> None:
        self._units = list(units)
        try:
            self._cluster, self.devices = self._decide(lambda: self._make_actors(units, loader))
            self._cluster.connect()
            made = self._made or [self._find(place, unit) for place, unit in enumerate(units)]
            self._hosts = [RayHost(unit.names, *each, self.terms.limit) for unit, each in zip(units, made, strict=True)]
        except BaseException:
            self.close()
            raise

    def _names(self, place: int, unit: Unit) -> list[str]:
        return [f"{self.terms.run_id}/{place}/{replica}" for replica in range(unit.replicas)]

    def _find(self, place: int, unit: Unit) -> tuple[list[Any], list[Any]]:
        import ray

        actors = [ray.get_actor(name, NAMESPACE) for name in self._names(place, unit)]
        # It is answered after loading, which the first process has asked for.
        return collect(actors[0].order.remote, unit.role, max(self.terms.limit, LOADING)), actors

    def _make_actors(self, units: Sequence[Unit], loader: Loader) -> tuple[Cluster, dict[str, float]]:
        terms, actors = self.terms, sum(unit.replicas for unit in units)
        where = "on this machine" if terms.address is None else f"in the cluster at {terms.address}"
        policies = ", ".join(role_of(name) for unit in units for name in unit.names)
        logger.warning("Ray is starting %d processes %s: %s.", actors, where, policies)  # which takes a while
        import ray

        sent = [_sendable(unit, loader) for unit in units]
        self._cluster = open_cluster(terms.address, cpus=actors, shared_memory=2 * sum(map(_bytes, sent)))
        default = 1.0 if terms.may_use_gpus and ray.cluster_resources().get("GPU") else 0.0
        sent = [replace(unit, gpus=default if unit.gpus is None else unit.gpus) for unit in sent]
        check_room(sent)
        kind = ray.remote(PolicyActor)
        devices = {}
        for place, unit in enumerate(sent):
            order = ray.put(Order(unit, terms.dtype, terms.autocast_dtype, terms.trust_remote_code, terms.checks))
            options = {
                "num_gpus": unit.gpus,
                "num_cpus": 0 if unit.gpus else 1,
                "max_restarts": RESTARTS,
                "max_task_retries": -1,  # every call can be made again
                "scheduling_strategy": "SPREAD",
                "namespace": NAMESPACE,
            }
            made = [kind.options(name=name, **options).remote() for name in self._names(place, unit)]
            for actor in made:
                actor.load.remote([order])  # before another process finds it
            self._made.append(([order], made))
            devices[", ".join(unit.names)] = (unit.gpus or 1.0) * unit.replicas
        return self._cluster, devices

    def members(self) -> dict[str, RemoteMember]:
        try:
            found = [host.loaded() for host in self._hosts]
        except BaseException:
            self.close()
            raise
        members = {}
        for unit, loaded in zip(self._units, found, strict=True):
            for name in unit.names:
                note = " (initial student)" if name == unit.itself and unit.given is None else ""
                source = f"{loaded.sources[name]}{note}"
                members[name] = RemoteMember(name, source, loaded.fingerprints[name], loaded.parameters[name])
        return members

    def ask(self, rollouts: Rollouts, names: Collection[str], timer: Timer) -> dict[str, Answer]:
        responses = (rollouts.response_mask != 0).sum(dim=1).tolist()
        lengths = (rollouts.attention_mask != 0).sum(dim=1).tolist()
        sent, size = self._outbox.rollouts(rollouts)
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
                answers[name] = RemoteAnswer(name, host, questions, responses, self._outbox, timer)
        return answers

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


def _sendable(unit: Unit, loader: Loader) -> Unit:
    """With a model that is in memory, as the initial student is, in host memory: from there it is sent."""
    given = unit.given or Teacher(model=loader.weights(unit.role, None)[0])
    if isinstance(given.model, nn.Module):
        if (unit.gpus or 0) > 1:
            raise ValueError(
                f"{unit.role}: gpus = {unit.gpus:g}, but a model in memory, as the initial student is, cannot be "
                "spread over several GPUs. Save it, and give its path; for adapters over it, as `reference`."
            )
        given = replace(given, model=_on_host(given.model))
    return replace(unit, given=given)


def _on_host(model: StudentModel) -> StudentModel:
    """A copy, since tensors may be the student's own."""
    tensors = {
        id(tensor): nn.Parameter(tensor.detach().cpu(), requires_grad=False)
        if isinstance(tensor, nn.Parameter)
        else tensor.detach().cpu()
        for tensor in (*model.parameters(), *model.buffers())
    }
    return copy.deepcopy(model, tensors)


def _bytes(unit: Unit) -> int:
    """Of weights that are sent."""
    model = unit.given.model if unit.given is not None else None
    return sum(tensor.nbytes for tensor in model.parameters()) if isinstance(model, nn.Module) else 0
