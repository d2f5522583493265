"""The host memory that offloaded models need: each process pins its own copy of every model."""

import os
from collections.abc import Sequence

import psutil
import torch

from trustmopd.policies.sizes import size_of
from trustmopd.policies.teacher import Teacher

_GIB = 2**30


def check_host_memory(models: Sequence[Teacher], dtype: torch.dtype, asked: str) -> str:
    """A sentence on how much memory `models` pin on this node; `dtype` is for those that have none of their own, and
    `asked` is how the user asked for it. Raises an error if it is more than is free. Output heads, which stay on the
    device, are not counted; nor are models whose configuration is not on this machine yet."""
    known = [size for model in models if (size := size_of(model, dtype)) is not None]
    sizes = [size.bytes_without_head / _GIB for size in known]
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    pinned, free = sum(sizes) * processes, psutil.virtual_memory().available / _GIB
    told = (
        f"{asked} pins {pinned:.3g} GiB of host memory on this node: {len(sizes)} models of "
        f"{max(sizes, default=0):.3g} GiB at most, in each of {processes} processes"
    )
    if pinned > free:
        raise ValueError(
            f"{told}, but only {free:.3g} GiB are free. Place some elsewhere (sharded, ray), start fewer processes on "
            "a node, or choose a smaller teacher_dtype."
        )
    return told
