"""Workloads in the shapes that benchmarks/results were measured with."""

import csv
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from trustmopd.planning import Workload

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
rates, bench_peak = import_module("rates"), import_module("bench_peak")


def work(shape: str, *, trust: bool = True, **changes: int | bool | float) -> Workload:
    """Three teachers of the student's shape, 64 responses of 1,024 tokens, as bench_step.py has them."""
    sizes = {"tokens": 1024, "responses": 64, "micro_batch": 4, "candidates": 128}
    return replace(bench_peak.workload(rates.shape_of_llama(shape), trust=trust, **sizes), **changes)


def results(name: str) -> list[dict[str, str]]:
    """Rows of a GPU; none where it has not been measured."""
    if not (path := BENCHMARKS / "results" / name).exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["device"] == "cuda"]


def measured_steps() -> list[dict[str, str]]:
    """Steps of our own trainer in which all three teachers are asked."""
    return [row for row in results("step.csv") if row["allocation"] in ("uniform", "trust", "random")]
