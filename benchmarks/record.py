"""Rows of measurements with what they depend on, appended to a CSV file."""

import csv
import math
import platform
import subprocess
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def versions(device: str) -> dict[str, str]:
    """What a figure depends on besides its case."""
    names = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("triton", "transformers", "trl", "liger-kernel"):
        try:
            names[package] = version(package)
        except PackageNotFoundError:
            continue
    machine = torch.cuda.get_device_name() if device.startswith("cuda") else f"threads {torch.get_num_threads()}"
    return {
        "versions": " ".join([*(f"{name} {number}" for name, number in names.items()), machine, *_commit()]),
        "date": date.today().isoformat(),
    }


def _commit() -> list[str]:
    """The code itself, where it is a checkout: two rows of one day may be of two kernels."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return [f"trustmopd {told.stdout.strip()}"] if told.returncode == 0 else []


def number(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def append(rows: list[dict[str, object]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)
