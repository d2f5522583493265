"""Workloads in the shapes that benchmarks/results were measured with."""

import csv
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from trustmopd.planning.shapes import Shape
from trustmopd.planning.workload import Workload

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
SHAPES, PROMPT = (getattr(import_module("bench_step"), name) for name in ("SHAPES", "PROMPT"))
rates = import_module("rates")


def measured_shape(name: str) -> Shape:
    hidden, layers, heads, kv_heads, intermediate, vocab = SHAPES[name]
    parameters = rates.parameters(name)
    return Shape(parameters, vocab * hidden, 0, layers, hidden, intermediate, 2 * kv_heads * hidden // heads, vocab)


def work(shape: Shape, *, reference: bool = True, lora: int = 0, **changes: int | bool) -> Workload:
    """Three teachers of the student's shape, as the benchmarks have them."""
    given = Workload(
        student=shape,
        teachers=(shape,) * 3,
        adapter_teachers=0,
        reference=shape if reference else None,
        reference_is_student=True,
        scores_reference=reference,
        is_lora=False,
        lora=lora,
        prompt=PROMPT,
        response=1024,
        batch=64,
        micro_batch=4,
        candidates=128,
    )
    return replace(given, **changes)


def results(name: str) -> list[dict[str, str]]:
    with (BENCHMARKS / "results" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def measured_steps() -> list[dict[str, str]]:
    """Steps of our own trainer in which all three teachers are asked."""
    rows = results("step.csv")
    return [r for r in rows if r["allocation"] in ("uniform", "trust", "random") and r["device"] == "cuda"]
