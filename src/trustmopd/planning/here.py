"""The plan's line for a run as it is, on this machine."""

import os
from dataclasses import asdict
from typing import Any

import psutil
import torch
from peft import LoraConfig

from trustmopd.planning.launching import asked_engine
from trustmopd.planning.memory import GIB, peak
from trustmopd.planning.plan import USABLE, fits
from trustmopd.planning.workload import BFLOAT16, ENGINES, FLOAT32, ZERO2, Setup, student_dtype_of, workload_of
from trustmopd.recipe import Recipe


def memory_here(recipe: Recipe, args: Any, lora: LoraConfig | None, longest_prompt: int) -> str:
    """Whether it fits, and GiB by part at the peak of a step; or why that is not known."""
    try:
        return _line(recipe, args, lora, longest_prompt)
    except ValueError as error:  # a model that the run itself may well load
        return f"not known: {error}"


def _line(recipe: Recipe, args: Any, lora: LoraConfig | None, longest_prompt: int) -> str:
    on_gpu = torch.cuda.is_available() and not args.use_cpu
    engine = asked_engine(args)
    if engine not in (*ENGINES, ZERO2):
        return f"not known: {engine} is not supported"
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
    parts = ", ".join(f"{name.replace('_', ' ')} {size:.2g}" for name, size in asdict(gib).items() if size)
    verdict = "fits in" if fits(gib, setup) else "does not fit in"
    of = "each GPU" if on_gpu else "the host" if on_node == 1 else "each process's share of the host"
    by = "" if world == 1 else f" with {engine}"
    free = "" if fits(gib, setup) else f", of which {1 - USABLE:.0%} should stay free"
    sentence = (
        f"about {gib.total:.3g} GiB at the peak of a step{by} {verdict} the {setup.memory:.3g} GiB of {of}{free} "
        f"({parts})"
    )
    return sentence + ("" if fits(gib, setup) else ". `trustmopd plan` shows what would")


def _accumulation(args: Any) -> dict[str, Any]:
    return getattr(args.accelerator_config, "gradient_accumulation_kwargs", None) or {}
