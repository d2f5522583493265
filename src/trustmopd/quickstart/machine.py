"""The machine that numbers come from: deterministic kernels, what it is called, and whether a study mixes several."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from trustmopd.training.run.identity import describe_machine
from trustmopd.util.messages import first_few


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
    """Our own bars and messages only: no line of a library for every model loaded."""
    import datasets
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()


def made_by(manifest: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Device and library versions: of a run, by its manifest, or of this machine."""
    made = manifest if manifest is not None else describe_machine(num_processes=1)
    hardware = made.get("hardware", {})
    # CPUs of one architecture differ in the width of their vectors, and so in the order in which numbers are added.
    cpu = f"CPU ({hardware.get('machine')}, {hardware.get('cpu_capability', 'capability not recorded')})"
    return {"device": (hardware.get("gpus") or [cpu])[0], "versions": made.get("versions", {})}


def describe(made: Mapping[str, Any]) -> str:
    """Device and versions in one line."""
    return ", ".join([made["device"], *(f"{name} {number}" for name, number in made["versions"].items())])


def mixture(records: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Which of the named records were made with which device and versions; None where all are alike."""
    groups: dict[str, list[str]] = {}
    for name, record in records.items():
        groups.setdefault(describe(record), []).append(name)
    return "; ".join(f"{first_few(names, 3)}: {made}" for made, names in groups.items()) if len(groups) > 1 else None
