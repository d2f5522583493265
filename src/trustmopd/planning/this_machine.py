"""The memory of a run as it is, on this machine: an estimate, and what is refused before anything is loaded."""

import os
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil
import torch

from trustmopd.planning.launching import asked_engine
from trustmopd.planning.memory import GIB, peak, pinned_bytes
from trustmopd.planning.plan import USABLE, fits
from trustmopd.planning.shapes import shape_of
from trustmopd.planning.workload import (
    BFLOAT16,
    ENGINES,
    FLOAT32,
    OWN,
    ZERO2,
    Setup,
    Workload,
    student_dtype_of,
    workload_of,
)
from trustmopd.policies.graph import PolicyGraph, Weights
from trustmopd.recipe.teacher_source import RAY


@dataclass(frozen=True)
class RunHere:
    """What a run needs, and how it would run. `held_by` is whose memory `setup` has."""

    work: Workload
    setup: Setup
    held_by: str

    @property
    def fits(self) -> bool:
        return fits(peak(self.work, self.setup), self.setup)

    @property
    def machine(self) -> str:
        """As `trustmopd plan` calls it."""
        nodes = f" --nodes {self.setup.nodes}" if self.setup.nodes > 1 else ""
        return f"--gpus {self.setup.gpus} --memory {_digits(self.setup.memory, 3)}{nodes}"

    def __str__(self) -> str:
        """GiB by part at the peak of a step."""
        gib = peak(self.work, self.setup)
        sizes = {name.replace("_", " "): size for name, size in asdict(gib).items() if size > 1e-4}
        parts = ", ".join(f"{name} {_digits(size, 2)}" for name, size in sizes.items())
        by = "" if self.setup.world == 1 else f" with {self.setup.engine}"
        free = "" if self.fits else f", of which {1 - USABLE:.0%} should stay free"
        return (
            f"about {_digits(gib.total, 3)} GiB at the peak of a step{by} {'fits' if self.fits else 'does not fit'} in "
            f"the {_digits(self.setup.memory, 3)} GiB of {self.held_by}{free} ({parts})"
        )

    def check_host_memory(self, asked: str) -> str:
        """A sentence on how much memory offloaded models pin on this node, where each process has its own copy. Raises
        an error if it is more than is free. `asked` is how the user asked for it."""
        sizes = [size / GIB for model in self.work.models(self.setup) if (size := pinned_bytes([model]))]
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        pinned, free = sum(sizes) * processes, psutil.virtual_memory().available / GIB
        told = (
            f"{asked} pins {pinned:.3g} GiB of host memory on this node: {len(sizes)} models of "
            f"{max(sizes, default=0):.3g} GiB at most, in each of {processes} processes"
        )
        if pinned > free:
            raise ValueError(
                f"{told}, but only {free:.3g} GiB are free. Place some elsewhere (sharded, ray), start fewer processes "
                "on a node, or choose a smaller teacher_dtype."
            )
        return told


class UnknownMemory(ValueError):
    """Why it is not known what a run needs. The run itself may well load such a model."""


def run_here(graph: PolicyGraph, student: Any, args: Any, lora: Any, longest_prompt: int) -> RunHere:
    """`student` is its path, or the model; `lora` the adapter that it is to have, if any."""
    engine = asked_engine(args)
    if engine not in (*ENGINES, ZERO2):
        raise UnknownMemory(f"{engine} is not supported")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    on_node = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    memory, held_by = _memory(args, on_node)
    known = [weights for weights in graph.weights if weights.on != RAY or _is_known(weights)]
    try:
        dtype, longest = student_dtype_of(args, student), min(longest_prompt, args.max_prompt_length or longest_prompt)
        half = (args.mixed_dtype or dtype).itemsize == 2
        work = workload_of(replace(graph, weights=known), student, args, lora, half=half, prompt=longest)
    except ValueError as error:
        raise UnknownMemory(str(error)) from error
    accumulation = getattr(args.accelerator_config, "gradient_accumulation_kwargs", None) or {}
    setup = Setup(
        OWN,
        engine,
        BFLOAT16 if dtype.itemsize == 2 else FLOAT32,
        gpus=on_node,
        nodes=max(1, world // on_node),
        memory=memory,
        sync_each_batch=bool(accumulation.get("sync_each_batch")) or args.gradient_accumulation_steps == 1,
    )
    return RunHere(work, setup, held_by)


def _memory(args: Any, on_node: int) -> tuple[float, str]:
    """GiB that one process may fill, and whose they are."""
    if torch.cuda.is_available() and not args.use_cpu:
        size = torch.cuda.get_device_properties(0).total_memory * torch.cuda.get_per_process_memory_fraction(0)
        return size / GIB, "each GPU"
    # Processes without GPUs share the memory of their machine.
    size = psutil.virtual_memory().total / on_node
    return size / GIB, "the host" if on_node == 1 else "each process's share of the host"


def _is_known(weights: Weights) -> bool:
    """Whether its configuration can be read here: a path of a policy on Ray may be on another machine."""
    try:
        return weights.checkpoint is None or bool(shape_of(weights.role, weights.checkpoint.model))
    except ValueError:
        return False


def _digits(gib: float, count: int) -> str:
    """That many, or all before the point: never an exponent."""
    return f"{gib:.{count}g}" if gib < 10 ** (count - 1) else f"{gib:.0f}"
