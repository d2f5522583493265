"""What has GPUs of its own: frozen policies on Ray (how many GPUs, what travels), and a vLLM server."""

import math

from trustmopd.planning.memory import FORWARD, GIB, least_of_vllm
from trustmopd.planning.workload import FrozenModel, Setup, Workload

#: Bytes of a candidate: its id as int32, its logit as float32.
CANDIDATE = 8


def gpus_of(model: FrozenModel, work: Workload, setup: Setup, usable: float) -> int:
    """GPUs of one replica, with `usable` bytes each: its weights may be spread, what it computes with may not."""
    rows, shape = work.micro_batch_on(setup.world), model.shape
    width = (FORWARD[0] * shape.hidden + FORWARD[1] * shape.intermediate) * work.compute_bytes
    reading = rows * (work.prompt + work.response) * width
    kept = min(work.answers_on_device, work.batch * work.response * shape.hidden * work.compute_bytes)
    room = max(usable - reading - kept, 0.05 * usable)
    return max(1, math.ceil((model.head + model.body) / room))


def server_gpus(work: Workload, usable: float, asked: int | None) -> int:
    """GPUs of the recipe's vLLM server, with `usable` bytes each; 0 without one. The recipe cannot say how many: they
    are those `asked` for, or the fewest that hold the student."""
    if not work.vllm_serves:
        if asked:
            raise ValueError(
                f"--server-gpus {asked}: this recipe has no vLLM server. Leave it out, or set training.use_vllm=true "
                "and training.vllm_mode=server."
            )
        return 0
    least = max(1, math.ceil(least_of_vllm(work) / usable))
    if asked is not None and asked < least:
        raise ValueError(
            f"--server-gpus {asked}: vLLM needs at least {least_of_vllm(work) / GIB:.1f} GiB for the student's weights "
            f"and one response, and {usable / GIB:.1f} of each GPU can be filled. Give at least {least}."
        )
    return asked or least


def candidate_bytes(work: Workload, setup: Setup) -> float:
    """What each training GPU sends and receives in a step."""
    return work.batch / setup.world * work.response * work.candidates * CANDIDATE * work.policies
