"""Frozen policies on GPUs of their own, by Ray: how many GPUs, how long they read, what travels."""

import math

from trustmopd.planning.memory import FORWARD
from trustmopd.planning.shapes import Shape
from trustmopd.planning.workload import Setup, Workload

#: Bytes of a candidate: its id as int32, its logit as float32.
CANDIDATE = 8


def gpus_of(host: Shape, work: Workload, setup: Setup, usable: float) -> int:
    """GPUs of one replica, with `usable` bytes each: its weights may be spread, what it computes with may not."""
    rows = work.micro_batch_on(setup.world)
    width = (FORWARD[0] * host.hidden + FORWARD[1] * host.intermediate) * work.compute_bytes
    reading = rows * (work.prompt + work.response) * width
    kept = min(work.answers_on_device, work.batch * work.response * host.hidden * work.compute_bytes)
    room = max(usable - reading - kept, 0.05 * usable)
    return max(1, math.ceil(host.parameters * work.frozen_bytes / room))


def policies_on(host: int, work: Workload) -> int:
    """Policies that read on this one of `work.hosts`. Teachers come first."""
    return 1 if host < len(work.teachers) else work.bases[host - len(work.teachers)].policies


def candidate_bytes(work: Workload, setup: Setup) -> float:
    """What each training GPU sends and receives in a step."""
    return work.batch / setup.world * work.response * work.candidates * CANDIDATE * work.policies
