"""The machine that numbers come from: deterministic kernels, what it is called, and whether a study mixes several."""

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from trustmopd.training.identity import describe_machine

_NAMED = 3  # cells that a warning names of each kind


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


def made_by() -> dict[str, Any]:
    """Device and library versions, as the records of this machine's results hold them."""
    # CPUs of one architecture differ in the width of their vectors, and so in the order in which numbers are added.
    cpu = f"CPU ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu
    return {"device": device, "versions": describe_machine(num_processes=1)["versions"]}


def describe(record: Mapping[str, Any]) -> str:
    """Device and versions of a record in one line; records of earlier releases may have neither."""
    if "versions" not in record:
        return record.get("machine", "a machine that was not recorded")
    return ", ".join([record["device"], *(f"{name} {number}" for name, number in record["versions"].items())])


def mixture(records: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Which of the named records were made on which device and with which versions, where they differ; None where all
    are alike."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, record in records.items():
        made = {"device": record["device"], **record["versions"]} if "versions" in record else {}
        groups.setdefault(tuple(made.items()), []).append(name)
    if len(groups) == 1:
        return None
    recorded = [dict(made) for made in groups if made]
    fields = dict.fromkeys(field for made in recorded for field in made)
    # Where only what was not recorded stands apart, the device says enough of the others.
    differing = [field for field in fields if len({made.get(field) for made in recorded}) > 1] or ["device"]
    return "; ".join(
        f"{_some(names)}: " + (", ".join(f"{f} {v}" for f, v in made if f in differing) or "not recorded")
        for made, names in groups.items()
    )


def _some(names: list[str]) -> str:
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])
