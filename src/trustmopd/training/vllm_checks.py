"""What a run needs to sample with vLLM, checked before any model is loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from trustmopd.engines.vllm_package import check_architecture
from trustmopd.planning.launching import asked_engine
from trustmopd.teacher_source import RAY
from trustmopd.teachers import Teacher
from trustmopd.teachers.sizes import size_of
from trustmopd.teachers.skeleton import skeleton
from trustmopd.teachers.units import units_of
from trustmopd.training.config import TrustMOPDConfig

GIB = 2**30


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
    check_architecture((config.architectures or [type(model).__name__])[0], source, args.vllm_model_impl)
    if args.vllm_max_model_length is not None and args.vllm_max_model_length < longest:
        raise ValueError(
            f"vllm_max_model_length = {args.vllm_max_model_length} is less than {longest}, the tokens of the longest "
            "prompt plus max_completion_length, so responses would be cut. Raise it, or leave it unset."
        )
    if torch.cuda.is_available() and not args.use_cpu and args.vllm_mode == "colocate":
        share = torch.cuda.get_device_properties(0).total_memory * torch.cuda.get_per_process_memory_fraction(0)
        bare = skeleton(model)
        student = 0 if bare is None else sum(parameter.numel() for parameter in bare.parameters())
        frozen = frozen_bytes(model, teachers, reference, args, lent=trains_adapter)
        check_memory(student, frozen, args, share / GIB, trained=0 if trains_adapter else student)


def frozen_bytes(
    model: Any, teachers: Mapping[str, Teacher], reference: Teacher | None, args: TrustMOPDConfig, *, lent: bool = False
) -> list[int]:
    """Of every frozen model that is here, teachers' own references too. `lent`: the initial student is the student's
    own base."""
    units = units_of(teachers, reference, with_reference=args.needs_reference, placement=args.teacher_placement)
    frozen = [unit.given for unit in units if unit.on != RAY]
    sizes = [size_of(each or Teacher(model=model), args.frozen_dtype) for each in frozen if each or not lent]
    return [size.bytes for size in sizes if size is not None]


def check_memory(student: int, frozen: list[int], args: TrustMOPDConfig, gib: float, *, trained: int) -> None:
    """Whether a GPU of `gib` GiB can hold the run; `student` and `trained` count parameters, `frozen` bytes. Only
    weights, gradients, optimizer and vLLM's share are counted; `trustmopd plan` counts the rest."""
    width = getattr(torch, str((args.model_init_kwargs or {}).get("dtype", "float32")), torch.float32).itemsize
    kept = {
        "resident": sum(frozen),
        "ray": sum(frozen),
        "offload": max(frozen, default=0),
        "sharded": sum(frozen) / args.world_size,
    }
    engine = args.vllm_gpu_memory_utilization * gib
    part = width / GIB / (1 if asked_engine(args) == "DDP" else args.world_size)
    # AdamW keeps two numbers for each parameter. Gradients exist while the student trains, not while it samples.
    held = {
        "student and optimizer": (student + 2 * trained) * part,
        "frozen models": kept[args.teacher_placement] / GIB,
    }
    sampling = {**held, "vLLM": engine}
    training = {**held, "gradients": trained * part, "vLLM": 0 if args.vllm_enable_sleep_mode else engine}
    for phase, parts in {"rollouts": sampling, "training": training}.items():
        if (total := sum(parts.values())) > gib:
            told = ", ".join(f"{name} {size:.1f}" for name, size in parts.items() if size)
            raise ValueError(
                f"during {phase} this run needs {total:.1f} GiB ({told}) plus activations, but the GPU has "
                f"{gib:.1f}. Set vllm_enable_sleep_mode = True (vLLM then sleeps while the student trains), "
                "teacher_placement = 'offload', model_init_kwargs = {dtype: bfloat16}, or a smaller "
                f"vllm_gpu_memory_utilization (now {args.vllm_gpu_memory_utilization:g})."
            )
