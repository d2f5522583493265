"""The machine that numbers come from."""

from collections.abc import Mapping
from typing import Any

from trustmopd.training.run.identity import describe_machine


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
