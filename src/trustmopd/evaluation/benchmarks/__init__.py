"""One file for a benchmark, or for a family of them. Any file here with a list `BENCHMARKS` is found."""

import difflib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from trustmopd.evaluation.benchmark import Benchmark
from trustmopd.evaluation.rows import Rows
from trustmopd.rows import SUFFIXES


@dataclass(frozen=True)
class Loaded:
    """A benchmark with the rows to ask."""

    benchmark: Benchmark
    rows: Rows


def get_benchmark(name: str) -> Benchmark:
    """A benchmark by its name, or your own set by the path of its file."""
    if check_benchmark_name(name) in _registry():
        return _registry()[name]
    from trustmopd.evaluation.own import own_benchmark

    return own_benchmark(Path(name))


def check_benchmark_name(name: str) -> str:
    if name not in _registry() and not name.endswith(SUFFIXES):
        close = difflib.get_close_matches(name.lower(), benchmark_names(), n=1)
        raise ValueError(
            f"there is no benchmark {name!r}. {f'Did you mean {close[0]}? ' if close else ''}Choose from "
            f"{', '.join(benchmark_names())}, or give a file of your own ({', '.join(SUFFIXES)})."
        )
    return name


def benchmark_names() -> list[str]:
    return list(_registry())


def load_benchmarks(names: Sequence[str], data: Mapping[str, str], limit: int | None = None) -> list[Loaded]:
    """Names, data and what grading needs: whatever is missing is reported before any model is loaded."""
    benchmarks = [get_benchmark(name) for name in names]
    known = [benchmark.name for benchmark in benchmarks]
    if twice := [name for name in known if known.count(name) > 1]:
        raise ValueError(
            f"two benchmarks are called {twice[0]!r}, and would share a file. Rename one, or name it once."
        )
    if unknown := sorted(set(data) - set(known)):
        raise ValueError(f"data are given for {unknown[0]!r}, which is not evaluated. Add it to the benchmarks.")
    for benchmark in benchmarks:
        benchmark.ready()
    return [Loaded(benchmark, benchmark.load(data.get(benchmark.name), limit)) for benchmark in benchmarks]


@cache
def _registry() -> dict[str, Benchmark]:
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [benchmark for module in modules for benchmark in module.BENCHMARKS]
    return {benchmark.name: benchmark for benchmark in found}
