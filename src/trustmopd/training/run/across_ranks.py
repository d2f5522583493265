"""The processes of a run agree before they compute. Each may see another disk; if one of them stopped or took another
path, the others would wait for it forever."""

import os
import socket
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch.distributed as dist
from accelerate.utils import broadcast_object_list, gather_object

T = TypeVar("T")

#: Errors that a user can act on. Others are bugs, and are raised where they happen.
_TOLD = (ValueError, OSError)


def this_process() -> str:
    return f"rank {os.environ.get('RANK', '0')} on {socket.gethostname()}"


def first_decides(decide: Callable[[], T]) -> T:
    """The first process decides; every process gets its answer or its error."""
    answer: tuple[T | None, Exception | None] = (None, None)
    if not _several() or dist.get_rank() == 0:
        try:
            answer = decide(), None
        except _TOLD as error:
            answer = None, error
    if _several():
        (answer,) = broadcast_object_list([answer])
    found, refusal = answer
    if refusal is not None:
        raise refusal
    return found  # type: ignore[return-value]


def all_succeed(action: Callable[[], T], remedy: str = "") -> T:
    """Every process does this. If it fails in one, all raise an error that names that process."""
    found, problem = None, None
    try:
        found = action()
    except _TOLD as error:
        if not _several():
            raise
        problem = f"{this_process()}: {error}"
    if _several() and (problems := [each for each in gather_object([problem]) if each]):
        everywhere = len(problems) == dist.get_world_size()
        raise ValueError(problems[0] if everywhere or not remedy else f"{problems[0]} {remedy}")
    return found  # type: ignore[return-value]


def check_same(fingerprints: Mapping[str, str | None]) -> None:
    """Check that every process has loaded the same weights."""
    if not _several():
        return
    mine = (this_process(), dict(fingerprints))
    first, *others = gather_object([mine])
    for place, theirs in others:
        for name, was in first[1].items():
            if theirs.get(name) != was:
                raise ValueError(
                    f"the weights of {name} differ between processes: {was} in {first[0]}, {theirs.get(name)} in "
                    f"{place}. Put the same files at the same path on every node."
                )


def lost_contact(error: Exception) -> bool:
    """Whether an error means that another process has ended or did not answer in time."""
    if isinstance(error, dist.DistError):
        return True
    said = str(error).lower()
    return any(word in said for word in ("gloo", "nccl", "connection closed by peer", "connection reset by peer"))


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
