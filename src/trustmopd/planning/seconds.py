"""Seconds of a step, from rates measured on one GPU (`rates.json`, made of benchmarks/results), and bytes between GPUs.

Time is proportional to parameters × tokens, at rates between those of the measured sizes; work on several GPUs is
divided evenly, and travels beside what it computes. Bandwidths are assumptions, not measurements.
"""

import json
import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

from trustmopd.planning.memory import pinned_bytes
from trustmopd.planning.workload import ADAPTERS, DDP, FSDP2, OFFLOAD, RAY, RESIDENT, SHARDED, Setup, Workload

#: Bytes a second to and from one GPU: inside a node (NVLink), between nodes (400 Gb/s a GPU), from host memory.
NVLINK, NETWORK, HOST = 300e9, 50e9, 50e9
#: Bytes of a candidate: its id as int32, its logit as float32.
CANDIDATE = 8


@cache
def rates() -> dict[str, Any]:
    return json.loads((files(__package__) / "rates.json").read_text())


def seconds_per_step(work: Workload, setup: Setup) -> float:
    """With every prompt and response as long as the limits allow."""
    bandwidth = NVLINK if setup.nodes == 1 else NETWORK
    learning = _passes(work, setup) + _student(work, setup)
    rolling = rollout_bytes(work, setup) / bandwidth
    return max(sampling_seconds(work, setup), rolling) + max(learning, learning_bytes(work, setup) / bandwidth)


def gpu_hours(work: Workload, setup: Setup, seconds: float, extra_gpus: int = 0) -> float | None:
    """Of one run, its calibration included: batches that are sampled and read, and not learnt from. GPUs of policies
    elsewhere and of a vLLM server are held all the time."""
    if work.steps is None:
        return None
    calibration = work.calibration_batches * (sampling_seconds(work, setup) + _passes(work, setup))
    return (work.steps * seconds + calibration) * (setup.world + setup.server_gpus + extra_gpus) / 3600


def sampling_seconds(work: Workload, setup: Setup) -> float:
    student, responses = work.student, math.ceil(work.batch / (setup.server_gpus or setup.world))
    engine = "vllm" if work.uses_vllm else "static" if work.static_cache else "default"
    rate = rates()["decode"][engine]
    length = work.prompt + (work.response if engine == "static" else work.response / 2)
    cache_bytes = responses * length * student.key_value * student.layers * 2
    reading = _rate("pass", "resident", student.parameters) * student.parameters * responses * work.prompt
    return reading + work.response * (rate["layer"] * student.layers + rate["byte"] * cache_bytes)


def learning_bytes(work: Workload, setup: Setup) -> float:
    """What each GPU sends, and receives, while frozen models read and the student learns."""
    student, others = work.student, (setup.world - 1) / setup.world
    lora = work.trains_adapter(setup.placement)
    trained = work.lora if lora else student.parameters
    passes = work.batch / setup.world / work.micro_batch_on(setup.world)
    if setup.engine == DDP:  # a ring sends every gradient twice, once a step
        sent: float = 2 * trained * (4 if lora or setup.student_dtype == "float32" else 2)
    else:  # gathered for the forward, the backward, and the forward that checkpointing repeats; then reduced
        sent = passes * work.compute_bytes * (student.parameters * (3 if work.checkpointing else 2) + trained)
    if setup.placement == SHARDED:
        sent += passes * sum(model.body for model in work.models(setup) if not model.lent)
    if setup.placement != RAY:
        return sent * others
    return sent * others + work.batch / setup.world * work.response * work.candidates * CANDIDATE * work.policies


def rollout_bytes(work: Workload, setup: Setup) -> float:
    """FSDP2 gathers the student again for every token that transformers samples; otherwise it is gathered once."""
    if setup.engine == DDP:
        return 0.0
    times = work.response if setup.engine == FSDP2 and not work.uses_vllm else 1
    return times * work.student.parameters * work.compute_bytes * (setup.world - 1) / setup.world


def _passes(work: Workload, setup: Setup) -> float:
    """All frozen policies read the responses of one GPU. Weights in host memory arrive while others compute. Elsewhere
    each reads the whole batch, all of them at once."""
    models = work.models(setup)
    if setup.placement == RAY:
        batch, sizes = work.batch * (work.prompt + work.response), [(m.shape.parameters, m.policies) for m in models]
        return max(batch * size * policies * _rate("pass", RESIDENT, size) for size, policies in sizes)
    tokens = work.batch / setup.world * (work.prompt + work.response)
    name = OFFLOAD if setup.placement == OFFLOAD else RESIDENT
    passes = [(name, model.shape.parameters) for model in models for _ in range(model.bare)]
    passes += [(ADAPTERS, model.shape.parameters) for model in models for _ in model.adapters]
    taken = tokens * sum(size * _rate("pass", kind, size) for kind, size in passes)
    return max(taken, pinned_bytes(models) / HOST)


def _student(work: Workload, setup: Setup) -> float:
    student = work.student
    kind = ADAPTERS if work.trains_adapter(setup.placement) else "full"
    tokens = work.batch / setup.world * (work.prompt + work.response)
    repeated = 1.0 if work.checkpointing else 0.75  # measured with checkpointing, which repeats the forward
    update = _rate("rest", kind, student.parameters) * student.parameters
    shared = 1 if setup.engine == DDP else setup.world
    return tokens * student.parameters * repeated * _rate("student", kind, student.parameters) + update / shared


def _rate(kind: str, name: str, parameters: int) -> float:
    """Between the sizes that were measured on a logarithmic scale; beyond them, that of the nearest."""
    points: Sequence[tuple[int, float]] = rates()[kind][name]
    for (small, low), (large, high) in pairwise(points):
        if small <= parameters <= large:
            place = math.log(parameters / small) / math.log(large / small)
            return low * (high / low) ** place
    return points[0][1] if parameters < points[0][0] else points[-1][1]
