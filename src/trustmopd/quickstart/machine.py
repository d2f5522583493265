"""How the small world computes: with deterministic kernels, and without a line of a library for every model loaded."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import datasets
import torch
import transformers


@contextmanager
def reproducibly() -> Iterator[None]:
    """The same bits from the same seeds on the same machine: deterministic kernels wherever there are any."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory_efficient = torch.backends.cuda.mem_efficient_sdp_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # its backward adds up in any order
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cuda.enable_mem_efficient_sdp(memory_efficient)


def quiet() -> None:
    """Our own bars and messages only."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
