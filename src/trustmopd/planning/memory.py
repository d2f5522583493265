"""GiB on one GPU at each moment of a step, from parameter counts and tokens. docs/planning.md explains each term.

A step has three moments: the student samples (`rollout`), the frozen models read (`ask`), the student learns
(`train`). What is needed in one alone is freed before the next, so the largest of the three is the peak.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from trustmopd.planning.shapes import Shape
from trustmopd.planning.workload import (
    DDP,
    FLOAT32,
    OFFLOAD,
    RAY,
    SHARDED,
    ZERO2,
    ZERO3,
    FrozenModel,
    Setup,
    Workload,
)

GIB = 2**30
#: Elements a token, in widths of the model: what a layer holds in its backward, saves in its forward, and needs in a
#: forward without gradients. Fitted to the peaks of one H200.
BACKWARD, SAVED, FORWARD = (19, 8), (14, 4), (4, 3)
#: Logits of the candidates' search, in bytes: `heads/fused.py` works on one block at a time.
SEARCH = 384 * 2**20
#: Parameters that ZeRO-3 keeps gathered at a time: DeepSpeed's stage3_max_live_parameters.
LIVE = 10**9
#: PEFT keeps adapters in float32; so do AdamW's moments of them.
ADAPTER_BYTES = 4


@dataclass(frozen=True)
class Gib:
    """Memory of one GPU at one moment, by what holds it."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    answers: float = 0.0
    rollout_engine: float = 0.0

    @property
    def total(self) -> float:
        return sum(vars(self).values())


def peak(work: Workload, setup: Setup) -> Gib:
    """The moment that needs most."""
    return max(moments(work, setup).values(), key=lambda each: each.total)


def moments(work: Workload, setup: Setup) -> dict[str, Gib]:
    student, optimizer = student_weights(work, setup), _optimizer(work, setup)
    kept, reading = frozen_weights(work, setup)
    responses = work.batch // setup.world
    answers = min(answer_bytes(work, setup), work.answers_on_device)
    engine = vllm(work, setup)
    awake = 0.0 if work.vllm_sleeps else engine
    cache, sampling = _sampling(work, setup, responses)
    reads = reading_bytes(work, setup, [model.shape for model in work.models(setup) if model.on != RAY])
    return {
        "rollout": _gib(student + kept, 0, optimizer, sampling, 0, engine + cache),
        "ask": _gib(student + reading, 0, optimizer, reads, answers, awake),
        "train": _gib(student + kept, gradients(work, setup), optimizer, _training(work, setup), answers, awake),
    }


def reading_bytes(work: Workload, setup: Setup, shapes: Iterable[Shape]) -> int:
    """What frozen models compute with, one after another: the widest counts."""
    widest = max((_wide(shape, work.compute_bytes, FORWARD) for shape in shapes), default=0)
    return work.micro_batch_on(setup.world) * (work.prompt + work.response) * widest


def answer_bytes(work: Workload, setup: Setup) -> float:
    """What the frozen models leave for later; beyond `answers_on_device` it goes to host memory."""
    widths = sum(model.policies * model.shape.hidden for model in work.models(setup) if model.on != RAY)
    return work.batch // setup.world * work.response * work.compute_bytes * widths


def pinned_bytes(models: Iterable[FrozenModel]) -> int:
    """Of host memory, in each process."""
    return sum(model.body for model in models if model.on == OFFLOAD and not model.lent)


def student_weights(work: Workload, setup: Setup) -> float:
    student, size = work.student, _student_bytes(setup)
    lora = work.lora * ADAPTER_BYTES if work.trains_adapter(setup.placement) else 0
    if setup.engine == DDP:
        return student.parameters * size + lora
    if setup.engine == ZERO2:
        return student.parameters * 2 + lora
    if setup.engine == ZERO3:
        return (student.parameters * 2 + lora) / setup.world + 2 * min(student.parameters, LIVE)
    # accelerate raises what is trained to float32; a frozen base keeps its precision.
    size = size if work.trains_adapter(setup.placement) else 4
    gathered = (2 * student.layer + student.root) * work.compute_bytes  # one layer computes, the next arrives
    return (student.parameters * size + lora) / setup.world + gathered


def gradients(work: Workload, setup: Setup) -> float:
    if work.trains_adapter(setup.placement):
        trained, size, gathered = work.lora, ADAPTER_BYTES, 0.0
    else:
        trained, size = work.student.parameters, _student_bytes(setup)
        gathered = (work.student.layer + work.student.root) * work.compute_bytes
    if setup.engine == DDP:
        return trained * size * (2 if setup.world > 1 else 1)  # and the buckets in which they travel
    if setup.engine in (ZERO2, ZERO3):
        return trained * 2 / setup.world + gathered
    whole = trained * work.compute_bytes  # of all micro-batches but the last, unless each is reduced
    return trained * 4 / setup.world + (gathered if setup.sync_each_batch else max(whole, gathered))


def checkpoint_bytes(work: Workload, setup: Setup, *, with_optimizer: bool = True) -> float:
    """On disk: what is trained, and the optimizer's state of all processes."""
    if work.trains_adapter(setup.placement):
        trained = work.lora * ADAPTER_BYTES
    else:
        trained = work.student.parameters * {DDP: _student_bytes(setup), ZERO2: 2, ZERO3: 2}.get(setup.engine, 4)
    copies = 1 if setup.engine == DDP else setup.world
    return trained + with_optimizer * copies * _optimizer(work, setup)


def _optimizer(work: Workload, setup: Setup) -> float:
    """AdamW's two moments, in the precision of what they move; ZeRO keeps float32 weights too."""
    if work.trains_adapter(setup.placement):
        trained, size = work.lora, ADAPTER_BYTES
    else:
        trained, size = work.student.parameters, _student_bytes(setup) if setup.engine == DDP else 4
    if setup.engine == DDP:
        return 2 * trained * size
    return trained * (12 if setup.engine in (ZERO2, ZERO3) else 8) / setup.world


def frozen_weights(work: Workload, setup: Setup) -> tuple[float, float]:
    """Between passes, and while the frozen models read. Heads always stay: candidates are scored with them later."""
    here = [model for model in work.models(setup) if model.on != RAY]
    own = [model for model in here if not model.lent]
    parts = {OFFLOAD: 0.0, SHARDED: 1 / setup.world}
    kept = sum(model.head + model.body * parts.get(model.on, 1.0) for model in own)
    kept += sum(sum(model.adapters) for model in here) * ADAPTER_BYTES
    offloaded = sorted((model.body for model in own if model.on == OFFLOAD), reverse=True)
    sharded = [(2 * m.shape.layer + m.shape.embedding) * m.dtype.itemsize for m in own if m.on == SHARDED]
    # Of offloaded ones, one computes while the next arrives; sharded ones gather two layers.
    return kept, kept + max(sum(offloaded[:2]), max(sharded, default=0.0))


def vllm(work: Workload, setup: Setup) -> float:
    """What vLLM reserves: its share of the GPU, or the least that it needs if that is more."""
    if not work.vllm_share:
        return 0.0
    share = work.vllm_share * setup.memory * GIB if setup.memory < float("inf") else 0.0
    return max(share, least_of_vllm(work) / work.vllm_split)


def least_of_vllm(work: Workload) -> float:
    """Weights, and the cache of one sequence."""
    sequence = (work.prompt + work.response) * work.student.key_value * work.student.layers * 2
    return work.student.parameters * 2 + sequence


def _sampling(work: Workload, setup: Setup, responses: int) -> tuple[float, float]:
    """The cache of transformers' own sampling, and what it computes with; nothing where vLLM samples."""
    if work.uses_vllm:
        return 0.0, 0.0
    student = work.student
    a_token = responses * student.key_value * student.layers * work.compute_bytes
    reading = responses * work.prompt * _wide(student, work.compute_bytes, FORWARD)
    logits = 3 * responses * student.vocab * 4
    working = _cast_copies(work, setup)
    if setup.engine == ZERO3:  # TRL gathers the whole student to sample
        working += student.parameters * 2
    full = a_token * (work.prompt + work.response)
    if work.static_cache:
        return full, working + max(reading, logits)
    # A growing cache is still short while the prompts are read.
    return max(
        (a_token * work.prompt, working + reading),
        (full, working + logits),
        key=sum,
    )


def _training(work: Workload, setup: Setup) -> float:
    """Between a micro-batch's forward and its backward."""
    student, rows = work.student, work.micro_batch_on(setup.world)
    tokens = rows * (work.prompt + work.response)
    scored = rows * work.response * work.candidates * (8 + 16 * (work.policies + 1))
    search = min(SEARCH, rows * work.response * student.vocab * 4)
    size = _student_bytes(setup) if setup.engine == DDP else work.compute_bytes
    rounded = student.head * work.compute_bytes if size > work.compute_bytes else 0
    forward = _saved(work, tokens) + search + rounded
    return scored + max(forward + _cast_copies(work, setup), _backward(work, setup, tokens))


def _backward(work: Workload, setup: Setup, tokens: int) -> float:
    """Activations and new gradients of a micro-batch, without what scoring it needs."""
    student, compute = work.student, work.compute_bytes
    trained = 0 if work.trains_adapter(setup.placement) else _student_bytes(setup) if setup.engine == DDP else compute
    # The gradient of the head waits for that of the embedding; the largest of a layer is formed before it is added.
    new = (student.head + student.hidden * student.intermediate) * trained
    return _saved(work, tokens) + new + tokens * _wide(student, compute, BACKWARD)


def _saved(work: Workload, tokens: int) -> float:
    """What the layers' forwards leave for their backwards."""
    student, compute = work.student, work.compute_bytes
    width = student.hidden * compute if work.checkpointing else _wide(student, compute, SAVED)
    return student.layers * tokens * width


def _cast_copies(work: Workload, setup: Setup) -> float:
    """autocast keeps a copy of every float32 weight that is trained, in 16 bits, until the forward ends."""
    cast = setup.engine == DDP and setup.student_dtype == FLOAT32 and work.compute_bytes == 2
    return work.student.parameters * 2 if cast and not work.trains_adapter(setup.placement) else 0.0


def _wide(shape: Shape, compute: int, widths: tuple[int, int]) -> int:
    return (widths[0] * shape.hidden + widths[1] * shape.intermediate) * compute


def _student_bytes(setup: Setup) -> int:
    return 4 if setup.student_dtype == FLOAT32 else 2


def _gib(*bytes_: float) -> Gib:
    return Gib(*(each / GIB for each in bytes_))
