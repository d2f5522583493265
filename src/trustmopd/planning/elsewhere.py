"""Frozen policies on GPUs of their own, by Ray: how many GPUs, how long they read, what travels."""

import math

from trustmopd.planning.memory import FORWARD
from trustmopd.planning.shapes import Shape
from trustmopd.planning.workload import Setup, Workload

#: Of a policy's hidden states this much stays on its GPU: the default of answers_on_device_gib.
ANSWERS = 4 * 2**30
#: Bytes of a candidate: its id as int32, its logit as float32.
CANDIDATE = 8


def gpus_of(host: Shape, work: Workload, setup: Setup, usable: float) -> int:
    """GPUs of one replica, with `usable` bytes each: its weights may be spread, what it computes with may not."""
    rows = work.micro_batch_on(setup.world)
    width = (FORWARD[0] * host.hidden + FORWARD[1] * host.intermediate) * work.compute_bytes
    reading = rows * (work.prompt + work.response) * width
    kept = min(ANSWERS, work.batch * work.response * host.hidden * work.compute_bytes)
    room = max(usable - reading - kept, 0.05 * usable)
    return max(1, math.ceil(host.parameters * work.frozen_bytes / room))


def policies_on(host: int, work: Workload, setup: Setup) -> int:
    """Policies that read on this one of `work.hosts`: adapters read on the last, beside the reference."""
    last = host == len(work.hosts(setup)) - 1
    shared = work.adapter_teachers + (work.reference is not None and work.scores_reference)
    return max(1, shared) if last and work.reference is not None else 1


def candidate_bytes(work: Workload, setup: Setup) -> float:
    """What each training GPU sends and receives in a step."""
    return work.batch / setup.world * work.response * work.candidates * CANDIDATE * work.policies
