"""What a run needs to sample with vLLM, checked before any model is loaded."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from trustmopd.checkpoints.meta_model import skeleton
from trustmopd.planning.launching import asked_engine, check_joined
from trustmopd.planning.memory import GIB, backward_bytes, placed_weights
from trustmopd.planning.shapes import Shape, shape_of_skeleton
from trustmopd.planning.workload import DDP, student_dtype_of
from trustmopd.policies import Teacher
from trustmopd.policies.graph import units_of
from trustmopd.policies.preflight.model_facts import positions_of
from trustmopd.policies.sizes import size_of
from trustmopd.rollouts.vllm_package import can_sleep, check_architecture
from trustmopd.training.config import TrustMOPDConfig


def check_vllm_can_sample(
    model: Any,
    teachers: Mapping[str, Teacher],
    reference: Teacher | None,
    args: TrustMOPDConfig,
    longest: int,
    *,
    trains_adapter: bool = False,
) -> None:
    """`longest` is the most tokens that a prompt and its response have together."""
    named = isinstance(model, (str, Path))
    config = AutoConfig.from_pretrained(model, trust_remote_code=args.trust_remote_code) if named else model.config
    source = str(model) if named else model.name_or_path
    if not source:
        raise ValueError(
            "use_vllm = True loads the student from its path, but this model object has none. Save it with its "
            "tokenizer (save_pretrained), and give the path."
        )
    if args.vllm_mode == "colocate":
        _check_colocated(args)
    check_architecture((config.architectures or [type(model).__name__])[0], source, args.vllm_model_impl)
    if args.vllm_max_model_length is not None and args.vllm_max_model_length < longest:
        raise ValueError(
            f"vllm_max_model_length = {args.vllm_max_model_length} is less than {longest}, the tokens of the longest "
            "prompt plus max_completion_length, so responses would be cut. Raise it, or leave it unset."
        )
    positions = positions_of(config.get_text_config())
    if positions is not None and (args.vllm_max_model_length or 0) > positions:
        raise ValueError(
            f"vllm_max_model_length = {args.vllm_max_model_length}, but {source} has {positions} positions. Lower it, "
            "or leave it unset."
        )
    if torch.cuda.is_available() and not args.use_cpu and args.vllm_mode == "colocate":
        share = torch.cuda.get_device_properties(0).total_memory * torch.cuda.get_per_process_memory_fraction(0)
        bare = skeleton(model)
        student = None if bare is None else shape_of_skeleton(bare)
        dtype, lent = student_dtype_of(args, model), trains_adapter and asked_engine(args) == DDP
        frozen = frozen_bytes(model, teachers, reference, args, lent=lent)
        if student is not None:
            check_memory(student, dtype, frozen, args, share / GIB, trains_adapter=trains_adapter)


def _check_colocated(args: TrustMOPDConfig) -> None:
    start = "Start a multiple of it (accelerate launch --num_processes)"
    check_joined(args.vllm_tensor_parallel_size, args.world_size, start)
    if args.vllm_enable_sleep_mode and not can_sleep():
        raise ValueError("vllm_enable_sleep_mode = True, but vLLM can only sleep on a GPU. Set it to False here.")


def frozen_bytes(
    model: Any, teachers: Mapping[str, Teacher], reference: Teacher | None, args: TrustMOPDConfig, *, lent: bool = False
) -> tuple[float, float]:
    """Of all frozen models on one GPU, teachers' own references too: between passes, and while they read. `lent`: the
    initial student is the student's own base."""
    places: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for unit in units_of(teachers, reference, with_reference=args.needs_reference, placement=args.teacher_placement):
        size = size_of(unit.given or Teacher(model=model), args.frozen_dtype)
        if size is not None and not (unit.given is None and lent):
            places[unit.on].append((size.bytes - size.bytes_without_head, size.bytes_without_head))
    of_places = [placed_weights(place, models, args.world_size) for place, models in places.items()]
    return sum(kept for kept, _ in of_places), sum(reading for _, reading in of_places)


def check_memory(
    student: Shape,
    dtype: torch.dtype,
    frozen: tuple[float, float],
    args: TrustMOPDConfig,
    gib: float,
    *,
    trains_adapter: bool,
) -> None:
    """Whether a GPU of `gib` GiB can hold the run. Counted are weights, gradients, optimizer, vLLM's share, and what
    the student learns with from `max_tokens_per_micro_batch` tokens; `trustmopd plan` counts the rest."""
    trained = 0 if trains_adapter else student.parameters
    engine = args.vllm_gpu_memory_utilization * gib
    awake = 0.0 if args.vllm_enable_sleep_mode else engine
    spread = asked_engine(args) != DDP
    width = 4 if spread and trained else dtype.itemsize  # accelerate raises what FSDP2 trains to float32
    part = width / GIB / (args.world_size if spread else 1)
    copies = 2 if args.world_size > 1 and not spread else 1  # DDP's gradients travel in buckets of their own
    kept, reading = (size / GIB for size in frozen)
    compute = (args.mixed_dtype or dtype).itemsize
    learning = backward_bytes(
        student,
        args.max_tokens_per_micro_batch or 0,
        compute,
        checkpointing=args.gradient_checkpointing,
        trained=0 if trains_adapter else compute if spread else width,
    )
    # AdamW keeps two numbers for each parameter.
    held = {"student and optimizer": (student.parameters + 2 * trained) * part}
    phases = {
        "rollouts": {"frozen models": kept, "vLLM": engine},
        "the frozen models' passes": {"frozen models": reading, "vLLM": awake},
        "training": {
            "frozen models": kept,
            "gradients": copies * trained * part,
            "activations": learning / GIB,
            "vLLM": awake,
        },
    }
    for phase, needs in phases.items():
        parts = held | needs
        if (total := sum(parts.values())) > gib:
            told = ", ".join(f"{name} {size:.1f}" for name, size in parts.items() if size)
            raise ValueError(
                f"during {phase} this run needs at least {total:.1f} GiB ({told}), but the GPU has {gib:.1f}. Set "
                "vllm_enable_sleep_mode = True (vLLM then sleeps while the student trains), "
                "teacher_placement = 'offload', model_init_kwargs = {dtype: bfloat16}, a smaller "
                f"vllm_gpu_memory_utilization (now {args.vllm_gpu_memory_utilization:g}) or "
                "max_tokens_per_micro_batch."
            )
