"""What `trustmopd plan` counts seconds with, from the rows of results/: run it after new measurements.

    python benchmarks/rates.py          # writes src/trustmopd/planning/rates.json

A pass over a model takes seconds in proportion to parameters × tokens, by placement; sampling takes, for each token, a
time for every layer and one for every byte of the cache that is read. Where rows disagree, medians and least squares
decide.
"""

import csv
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from bench_step import NAMES, PROMPT, RULES, SHAPES

from trustmopd.planning.shapes import Shape

RESULTS = Path(__file__).parent / "results"
RATES = Path(__file__).parent.parent / "src" / "trustmopd" / "planning" / "rates.json"
MACHINE = "NVIDIA H200"
#: Engines of bench_rollouts.py by what a recipe calls them.
ENGINES = {"default": "default", "static-compiled": "static", "vllm": "vllm"}


def shape_of_llama(name: str) -> Shape:
    """With tied embeddings, as the benchmarks make them."""
    hidden, layers, heads, kv_heads, intermediate, vocab = SHAPES[name]
    kv_width = hidden // heads * kv_heads
    layer = 2 * hidden**2 + 2 * hidden * kv_width + 3 * hidden * intermediate + 2 * hidden
    parameters = layers * layer + vocab * hidden + hidden
    return Shape(parameters, vocab * hidden, 0, layers, hidden, intermediate, 2 * kv_width, vocab)


def rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(newline="") as file:
        return [row for row in csv.DictReader(file) if MACHINE in row["versions"]]


def of_a_step() -> dict[str, Any]:
    """Seconds a parameter and token of one frozen pass and of the student, by placement; of the rest, a parameter."""
    found: dict[str, dict[str, dict[int, list[float]]]] = {
        kind: defaultdict(lambda: defaultdict(list)) for kind in ("pass", "student", "rest")
    }
    for row in rows("step.csv"):
        if row["allocation"] not in RULES or row["allocation"] == "single":
            continue
        count = shape_of_llama(row["shape"]).parameters
        work = count * int(row["responses"]) * (PROMPT + int(row["tokens"]))
        taken = {phase: float(row[f"{phase}_seconds"]) for phase in ("student", "teachers", "reference", "backward")}
        kind = "adapters" if row["placement"] == "adapters" else "full"
        found["pass"][row["placement"]][count].append(taken["teachers"] / len(NAMES) / work)
        found["student"][kind][count].append((taken["student"] + taken["backward"]) / work)
        found["rest"][kind][count].append((float(row["step_seconds"]) - sum(taken.values())) / count)
    return {
        kind: {
            name: [[count, _rounded(statistics.median(values))] for count, values in sorted(by_size.items())]
            for name, by_size in by_name.items()
        }
        for kind, by_name in found.items()
    }


def of_sampling() -> dict[str, dict[str, float]]:
    """Seconds a layer, and a byte of the cache, for each token that all responses get at once."""
    points: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in rows("rollouts.csv"):
        if row["engine"] in ENGINES and row["decoded_per_second"]:
            shape = shape_of_llama(row["shape"])
            grows = row["engine"] != "static-compiled"
            length = int(row["prompt"]) + int(row["tokens"]) / 2 if grows else int(row["room"])
            cache = int(row["batch"]) * length * shape.key_value * shape.layers * 2
            seconds = int(row["batch"]) / float(row["decoded_per_second"])
            points[ENGINES[row["engine"]]].append((shape.layers, cache, seconds))
    fitted = {}
    for engine, seen in points.items():
        layers, cache, seconds = np.array(seen).T
        scale = np.array([1.0, 1e9])
        (layer, byte), *_ = np.linalg.lstsq(np.stack([layers, cache], 1) / scale, seconds, rcond=None)
        fitted[engine] = {"layer": _rounded(layer), "byte": _rounded(max(byte, 0.0) / scale[1])}
    return fitted


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def rates() -> dict[str, Any]:
    return {"schema_version": 1, "machine": MACHINE, **of_a_step(), "decode": of_sampling()}


if __name__ == "__main__":
    RATES.write_text(json.dumps(rates(), indent=1) + "\n")
    print(RATES.read_text())
