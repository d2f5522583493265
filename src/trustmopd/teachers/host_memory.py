"""The host memory that offloaded models need: each process pins its own copy of every model."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import torch

from trustmopd.checkpoint_files import tensors_of

_GIB = 2**30


def check_host_memory(models: Iterable[Any], dtype: torch.dtype) -> str:
    """A sentence on how much memory `models` (paths or loaded models) pin on this node. Raises an error if it is more
    than is free. Hub models that are not downloaded yet are not counted."""
    sizes = [_numbers(model) * dtype.itemsize / _GIB for model in models]
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    pinned, free = sum(sizes) * processes, psutil.virtual_memory().available / _GIB
    told = (
        f"teacher_placement = 'offload' pins {pinned:.3g} GiB of host memory on this node: {len(sizes)} models of "
        f"{max(sizes):.3g} GiB at most, in each of {processes} processes"
    )
    if pinned > free:
        raise ValueError(
            f"{told}, but only {free:.3g} GiB are free. Use teacher_placement = sharded, fewer processes on a node, or "
            "a smaller teacher_dtype."
        )
    return told


def _numbers(model: Any) -> int:
    if isinstance(model, (str, Path)):
        return sum(torch.Size(tensor.shape).numel() for tensor in tensors_of(model).values())
    return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())
