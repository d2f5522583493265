"""The plan's line for a run as it is, on this machine."""

import os
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch
from peft import LoraConfig

from trustmopd.planning.launching import asked_engine
from trustmopd.planning.memory import GIB, peak
from trustmopd.planning.plan import USABLE, fits
from trustmopd.planning.workload import BFLOAT16, ENGINES, FLOAT32, ZERO2, Setup, student_dtype_of, workload_of
from trustmopd.recipe import Recipe


@dataclass(frozen=True)
class MemoryHere:
    """GiB by part at the peak of a step, in words, and whether that `fits`; None: it is not known, and `told` says why.
    `machine` is what `trustmopd plan` calls this machine."""

    told: str
    fits: bool | None = None
    machine: str = ""


def memory_here(recipe: Recipe, args: Any, lora: LoraConfig | None, longest_prompt: int) -> MemoryHere:
    try:
        return _estimate(recipe, args, lora, longest_prompt)
    except ValueError as error:  # a model that the run itself may well load
        return MemoryHere(f"not known: {error}")


def _estimate(recipe: Recipe, args: Any, lora: LoraConfig | None, longest_prompt: int) -> MemoryHere:
    on_gpu = torch.cuda.is_available() and not args.use_cpu
    engine = asked_engine(args)
    if engine not in (*ENGINES, ZERO2):
        return MemoryHere(f"not known: {engine} is not supported")
    prompt = min(longest_prompt, args.max_prompt_length or longest_prompt)
    work = workload_of(recipe, args, lora, half=bool(args.bf16 or args.fp16), prompt=prompt)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    on_node = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    # Processes without GPUs share the memory of their machine.
    size = torch.cuda.get_device_properties(0).total_memory if on_gpu else psutil.virtual_memory().total / on_node
    setup = Setup(
        args.teacher_placement,
        engine,
        BFLOAT16 if student_dtype_of(args, recipe.student).itemsize == 2 else FLOAT32,
        gpus=on_node,
        nodes=max(1, world // on_node),
        memory=size / GIB,
        sync_each_batch=bool(_accumulation(args).get("sync_each_batch")),
    )
    gib = peak(work, setup)
    seen = {name.replace("_", " "): size for name, size in asdict(gib).items() if size > 1e-4}
    parts = ", ".join(f"{name} {_digits(size, 2)}" for name, size in seen.items())
    enough = fits(gib, setup)
    of = "each GPU" if on_gpu else "the host" if on_node == 1 else "each process's share of the host"
    by = "" if world == 1 else f" with {engine}"
    free = "" if enough else f", of which {1 - USABLE:.0%} should stay free"
    told = (
        f"about {_digits(gib.total, 3)} GiB at the peak of a step{by} {'fits' if enough else 'does not fit'} in the "
        f"{_digits(setup.memory, 3)} GiB of {of}{free} ({parts})"
    )
    nodes = f" --nodes {setup.nodes}" if setup.nodes > 1 else ""
    return MemoryHere(told, enough, f"--gpus {setup.gpus} --memory {_digits(setup.memory, 3)}{nodes}")


def _digits(gib: float, count: int) -> str:
    """That many, or all before the point: never an exponent."""
    return f"{gib:.{count}g}" if gib < 10 ** (count - 1) else f"{gib:.0f}"


def _accumulation(args: Any) -> dict[str, Any]:
    return getattr(args.accelerator_config, "gradient_accumulation_kwargs", None) or {}
