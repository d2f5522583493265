"""One file a benchmark, or a family of them. A file here with a list `BENCHMARKS` is found by itself."""

import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path

from trustmopd.evaluation.benchmark import Benchmark
from trustmopd.rows import SUFFIXES


def get_benchmark(name: str) -> Benchmark:
    """A benchmark by its name, or your own set by the path of its file."""
    if check_benchmark_name(name) in _registry():
        return _registry()[name]
    from trustmopd.evaluation.own import own_benchmark

    return own_benchmark(Path(name))


def check_benchmark_name(name: str) -> str:
    if name not in _registry() and not name.endswith(SUFFIXES):
        raise ValueError(
            f"there is no benchmark {name!r}. Choose from {', '.join(benchmark_names())}, or give a file of your own "
            f"({', '.join(SUFFIXES)})."
        )
    return name


def benchmark_names() -> list[str]:
    return list(_registry())


@cache
def _registry() -> dict[str, Benchmark]:
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [benchmark for module in modules for benchmark in module.BENCHMARKS]
    return {benchmark.name: benchmark for benchmark in found}
