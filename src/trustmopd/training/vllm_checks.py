"""What vLLM needs of a run, told before any model is loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from trustmopd.engines.vllm_package import check_architecture
from trustmopd.teachers import Teacher
from trustmopd.teachers.skeleton import skeleton
from trustmopd.training.config import TrustMOPDConfig

GIB = 2**30


def check_vllm_can_sample(
    model: Any, teachers: Mapping[str, Teacher], reference: Any, args: TrustMOPDConfig, longest: int
) -> None:
    """`longest` is the most tokens that a prompt and its response have together."""
    named = isinstance(model, (str, Path))
    config = AutoConfig.from_pretrained(model, trust_remote_code=args.trust_remote_code) if named else model.config
    source = str(model) if named else model.name_or_path
    if not source:
        raise ValueError(
            "use_vllm = True loads the student by name, and this model object has none. Save it (save_pretrained, with "
            "its tokenizer) and give the path."
        )
    check_architecture((config.architectures or [type(model).__name__])[0], source, args.vllm_model_impl)
    if args.vllm_max_model_length is not None and args.vllm_max_model_length < longest:
        raise ValueError(
            f"vllm_max_model_length = {args.vllm_max_model_length} is less than the longest prompt and "
            f"max_completion_length together, {longest} tokens: responses would be cut. Raise it, or leave it unset."
        )
    if torch.cuda.is_available() and not args.use_cpu and args.vllm_mode == "colocate":
        share = torch.cuda.get_device_properties(0).total_memory * torch.cuda.get_per_process_memory_fraction(0)
        frozen = [(teacher.model, teacher.dtype) for teacher in teachers.values() if teacher.model is not None]
        frozen += [(reference.model if reference else model, None)] if args.needs_reference else []
        check_memory(_size(model), [_size(each) for each, _ in frozen], args, share / GIB)


def check_memory(student: int, frozen: list[int], args: TrustMOPDConfig, gib: float) -> None:
    """Parameters of the student and of each frozen model against a GPU's memory. Weights, gradients, optimiser and the
    engine's share alone: what does not hold these holds no step. `trustmopd plan` counts the rest."""
    mixed = 2 if args.bf16 or args.fp16 else 4
    width = getattr(torch, str((args.model_init_kwargs or {}).get("dtype", "float32")), torch.float32).itemsize
    kept = getattr(torch, args.teacher_dtype).itemsize if args.teacher_dtype else mixed
    resident = sum(frozen) if args.teacher_placement == "resident" else max(frozen, default=0)
    engine = args.vllm_gpu_memory_utilization * gib
    # AdamW keeps two numbers a parameter; gradients are there while the student trains, and not while it samples.
    held = {"student and optimiser": 3 * student * width / GIB, "frozen models": resident * kept / GIB}
    sampling = {**held, "vLLM": engine}
    training = {**held, "gradients": student * width / GIB, "vLLM": 0 if args.vllm_enable_sleep_mode else engine}
    for phase, parts in {"rollouts": sampling, "training": training}.items():
        if (total := sum(parts.values())) > gib:
            told = ", ".join(f"{name} {size:.1f}" for name, size in parts.items() if size)
            raise ValueError(
                f"during {phase} this run needs {total:.1f} GiB ({told}) before any activation, and the GPU has "
                f"{gib:.1f}. Set vllm_enable_sleep_mode = True (vLLM then sleeps while the student trains), "
                "teacher_placement = 'offload', model_init_kwargs = {dtype: bfloat16}, or a smaller "
                f"vllm_gpu_memory_utilization (now {args.vllm_gpu_memory_utilization:g})."
            )


def _size(model: Any) -> int:
    bare = skeleton(model)
    return 0 if bare is None else sum(parameter.numel() for parameter in bare.parameters())
