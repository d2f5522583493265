"""One set of weights on Ray, as a training process sees it: its replicas, what is sent to them, what comes back."""

import heapq
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from trustmopd.policies.graph import role_of
from trustmopd.policies.hosts.ray.actor import Loaded, Reply
from trustmopd.policies.pool import Usage
from trustmopd.util.messages import Interrupted

logger = logging.getLogger(__name__)

#: Seconds that a policy may take to load at the start, even if it must answer sooner.
LOADING = 1800.0


class RayHost:
    """`replicas` are actors with the same weights, loaded by one `order`; `limit` is the most seconds for an answer."""

    def __init__(self, names: Sequence[str], order: list[Any], replicas: Sequence[Any], limit: float):
        self.names = list(names)
        self.order = order
        self.replicas = list(replicas)
        self.limit = limit
        self.usage = {name: Usage() for name in names}
        self._loaded: list[Loaded] = []
        self._loading: list[Any] = [replica.load.remote(order) for replica in replicas]

    @property
    def role(self) -> str:
        return ", ".join(map(role_of, self.names))

    def loaded(self) -> Loaded:
        """Once all replicas are; they must have the same weights."""
        limit = max(self.limit, LOADING)
        found = [collect(partial(_same, ref), self.role, limit) for ref in self._loading]
        for each in found:
            if each.fingerprints != found[0].fingerprints:
                raise ValueError(
                    f"{self.role}: the replicas have different weights ({found[0].fingerprints} and "
                    f"{each.fingerprints}). Put the same files at the same path on every node."
                )
        self._loaded, self._loading = found, []
        return found[0]

    @property
    def gaps(self) -> dict[str, float]:
        """Of vLLM from transformers, in nats: the largest among the replicas."""
        names = {name for each in self._loaded for name in each.gaps}
        return {name: max(each.gaps.get(name, 0.0) for each in self._loaded) for name in names}

    def reply(self, replica: int, name: str, send: Callable[[], Any]) -> Reply:
        """Also notes what it cost, and checks a process that was started anew."""
        began = time.perf_counter()
        reply = collect(send, role_of(name), self.limit)
        usage = self.usage[name]
        usage.waiting += time.perf_counter() - began
        usage.seconds += reply.seconds
        usage.bytes += sum(array.nbytes for array in reply.arrays)
        if reply.born != self._loaded[replica].born:
            self._check_again(replica)
        return reply

    def _check_again(self, replica: int) -> None:
        before = self._loaded[replica]
        now = collect(partial(self.replicas[replica].load.remote, self.order), self.role, self.limit)
        self._loaded[replica] = now
        logger.warning(
            "%s: process %d died. It was started again as %d, and asked again.",
            self.role, before.process, now.process,
        )  # fmt: skip
        if now.fingerprints != before.fingerprints:
            raise Interrupted(
                f"{self.role}: after a restart the weights are others ({before.fingerprints} before, "
                f"{now.fingerprints} now). Restore the files."
            )


def collect(send: Callable[[], Any], role: str, limit: float) -> Any:
    """The result of what `send` sends, within `limit` seconds. Ray starts an actor that died again, and sends its calls
    again."""
    import ray
    from ray.exceptions import GetTimeoutError, ObjectLostError, RayError, RayTaskError

    end = time.monotonic() + limit
    ref = send()
    while True:
        try:
            return ray.get(ref, timeout=max(0.0, end - time.monotonic()))
        except GetTimeoutError:
            raise Interrupted(
                f"{role} gave no answer within {limit:g} s (ray_timeout). Its process hangs, or its node is "
                "gone and no other has room for it. Look at the nodes with `ray status`; raise ray_timeout if it "
                "was only slow."
            ) from None
        except ObjectLostError:  # the answer was on a node that is gone
            ref = send()
        except RayTaskError as error:
            cause = error.cause
            kind = ValueError if isinstance(cause, ValueError) else Interrupted
            told = str(cause) if kind is ValueError else f"{role} failed in its own process ({_line(cause)})."
            raise kind(told) from error
        except RayError as error:  # its actor, its node or Ray itself, for good
            raise Interrupted(f"{role} is lost, and could not be started again ({_line(error)}).") from error


def shared_by_tokens(rows: Mapping[str, Sequence[int]], tokens: Sequence[int], replicas: int) -> list[dict[str, list]]:
    """The rows of each policy for each replica: the longest first, each to the replica with the fewest tokens. One
    replica reads them in the order in which they are given."""
    parts: list[dict[str, list]] = [{name: [] for name in rows} for _ in range(replicas)]
    loads = [(0, replica) for replica in range(replicas)]
    for name, mine in rows.items():
        for row in mine if replicas == 1 else sorted(mine, key=lambda row: -tokens[row]):
            load, replica = heapq.heappop(loads)
            parts[replica][name].append(row)
            heapq.heappush(loads, (load + tokens[row], replica))
    return [{name: mine for name, mine in part.items() if mine} for part in parts]


def _same(ref: Any) -> Any:
    return ref


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{type(error).__name__}: {lines[0][:200]}"
