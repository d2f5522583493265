"""The Ray cluster of a run: one that is there, or one of this machine alone that ends with the run."""

import os
import secrets
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from trustmopd.policies.graph import Weights
from trustmopd.util.messages import first_line

NAMESPACE = "trustmopd"
#: Bytes of shared memory for what is under way, in a cluster of this machine alone.
UNDER_WAY = 256 * 2**20
_START = "Start one (ray start --head), correct the address, or leave it out to start one on this machine."


def check_ray(asked: str) -> None:
    """`asked` is how the user asked for Ray."""
    if find_spec("ray") is None:
        raise ValueError(
            f"{asked} needs Ray, which is not installed. Install it (pip install 'trustmopd[ray]'), or choose another "
            "place: resident, offload or sharded."
        )


def check_address(address: str) -> None:
    """Whether a cluster answers there and takes our token. Ray itself would try for minutes, once models are loaded."""
    ray = _ray()
    from ray.exceptions import AuthenticationError, RayError

    asked, found = f"ray_address = {address!r}", address
    if address == "auto":
        if not (found := _cluster_here()):
            raise ValueError(f"{asked}: no cluster runs on this machine, and RAY_ADDRESS names none. {_START}")
        asked = f"{asked} (here {found})"
    host, _, port = found.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ValueError(f"{asked} is not host:port. Give what `ray start --head` printed: 10.0.0.1:6379.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray._raylet.GcsClient(address=found)
    except AuthenticationError:
        raise ValueError(
            f"{asked}: the cluster does not take the token of this machine. Set RAY_AUTH_MODE=token, and copy "
            "~/.ray/auth_token from the machine that started it."
        ) from None
    except (OSError, OverflowError, UnicodeError, RayError) as error:  # no such port; no such name
        raise ValueError(f"{asked}: there is no Ray cluster ({first_line(error)}). {_START}") from None


def _cluster_here() -> str:
    """What `auto` stands for: RAY_ADDRESS, or else a cluster of this machine. Empty if there is none."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        return canonicalize_bootstrap_address("auto") or ""
    except (ConnectionError, ValueError):
        return ""


@dataclass(frozen=True)
class Cluster:
    """How a process reaches it. `token` is set where this run has started it, and may be its only user."""

    address: str
    token: str | None = None

    def connect(self) -> None:
        """In a process that did not start it."""
        ray = _ray(self.token)
        if not ray.is_initialized():
            with _loopback(self.token is not None):
                _init(ray, self.address)


def is_connected() -> bool:
    """Whether this process is connected to a cluster. Asking must not import Ray, which then reads its settings."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def open_cluster(address: str | None, *, cpus: int, shared_memory: int) -> Cluster:
    """Connects this process: to the cluster at `address`; without one, to a new cluster with this many CPUs and the
    GPUs of this machine that do not train. It listens on 127.0.0.1 alone, and only this run has its token."""
    if address is not None:
        ray = _ray()
        if not ray.is_initialized():
            _init(ray, address)
        return Cluster(address)
    token = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
    if is_connected():
        raise ValueError(
            "ray_address = None starts a cluster, but this process is connected to one already. Give its address, or "
            "call ray.shutdown() first."
        )
    ray = _ray(token)
    with _loopback(True), _free_gpus() as gpus:
        context = ray.init(
            address="local",
            num_cpus=cpus,
            num_gpus=gpus,
            object_store_memory=UNDER_WAY + shared_memory,
            include_dashboard=False,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="error",
        )
    return Cluster(context.address_info["gcs_address"], token)


def check_room(asked: Sequence[Weights]) -> None:
    """Refuse actors for which the cluster will never have room: Ray would let them wait."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {
        "GPU": sum((weights.gpus or 0) * weights.replicas for weights in asked),
        "CPU": sum(weights.replicas for weights in asked if not weights.gpus),
    }
    for kind, many in wanted.items():
        there = sum(node.get(kind, 0) for node in nodes)
        if many > there:
            raise ValueError(
                f"the policies on Ray ask for {many:g} {kind}s, counting replicas, but the cluster has {there:g}. "
                "Add nodes, let policies share a GPU (gpus: 0.25), or place some elsewhere (on: offload)."
            )
    largest = max((node.get("GPU", 0) for node in nodes), default=0)
    for weights in asked:
        if (weights.gpus or 0) > largest:
            raise ValueError(
                f"{weights.role} asks for {weights.gpus:g} GPUs of one node, but the largest node has {largest:g}. "
                "Lower gpus, or add a larger node."
            )


def _init(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, TimeoutError) as error:
        told = " ".join(str(error).split())
        if "ersion mismatch" in told:
            raise ValueError(
                f"ray_address = {address!r}: the cluster has other versions ({told[:400]}). Install the same "
                "Python and Ray on every machine."
            ) from error
        raise ValueError(
            f"ray_address = {address!r}: there is no Ray cluster, or its token is not the one of this machine "
            f"({told[:200]}). Check the address (ray status), and ~/.ray/auth_token."
        ) from error


def _ray(token: str | None = None) -> Any:
    """Ray reads these when it is imported, and a token only once: the next cluster of this process has the same."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # each is told by a later call
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 otherwise: training would wait for actors that may not run
    if token is not None:
        os.environ |= {"RAY_AUTH_TOKEN": token, "RAY_AUTH_MODE": "token"}
    import ray

    if token is not None and not ray.is_initialized():
        ray._raylet.Config.initialize("")  # where vLLM is installed, TRL has imported it, and so Ray, before
    return ray


@contextmanager
def _loopback(wanted: bool) -> Iterator[None]:
    """Inside, a cluster starts on 127.0.0.1. Ray itself does so on macOS and Windows alone, by this constant; given
    that address on Linux, it takes the machine's own."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = before and not wanted
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _free_gpus() -> Iterator[int]:
    """The number of GPUs without a training process, which alone are visible inside; all of them if every one has a
    process, since sharing is then all that is left."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    every = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    free = every[int(os.environ.get("LOCAL_WORLD_SIZE", "1")) :] or every
    if free:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(free)
    try:
        yield len(free)
    finally:
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
        elif free:
            del os.environ["CUDA_VISIBLE_DEVICES"]
