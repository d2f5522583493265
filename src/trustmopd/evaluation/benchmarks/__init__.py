"""One file for a benchmark, or for a family of them: a list `BENCHMARKS`. `recipe.names` says which file has which."""

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from trustmopd.evaluation.benchmark import Benchmark, Rows
from trustmopd.recipe import QuestionFile
from trustmopd.recipe.names import BENCHMARKS, SUFFIXES, check_benchmark_name
from trustmopd.util.messages import first_line


@dataclass(frozen=True)
class Questions:
    """A benchmark with the rows to ask."""

    benchmark: Benchmark
    rows: Rows


def get_benchmark(name: str | QuestionFile | Benchmark) -> Benchmark:
    """A benchmark by its name; your own by its place, `mine.py:NAME` or `my.package:NAME`, by the file of its rows, or
    as it is."""
    if isinstance(name, Benchmark):
        return name
    if isinstance(name, QuestionFile) or check_benchmark_name(name).endswith(SUFFIXES):
        from trustmopd.evaluation.user_sets import own_benchmark

        return own_benchmark(name) if isinstance(name, str) else own_benchmark(name.path, name.grader)
    place, _, own = name.rpartition(":")
    module = module_at(place or BENCHMARKS[name])
    there = {benchmark.name: benchmark for benchmark in getattr(module, "BENCHMARKS", ())}
    if own not in there:
        raise ValueError(f"{place} has no benchmark {own!r} in a list `BENCHMARKS`, only {', '.join(there) or 'none'}.")
    return there[own]


def module_at(place: str) -> ModuleType:
    """A module by its name, or a Python file. What they import is also looked for in the current directory, as it is
    for `python -m trustmopd`."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        if not place.endswith(".py"):
            return import_module(place)
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except Exception as error:  # a user's own file may raise anything
        raise ValueError(f"{place} cannot be imported ({type(error).__name__}: {first_line(error)}).") from error


def load_benchmarks(names: Sequence[Any], data: Mapping[str, str], limit: int | None = None) -> list[Questions]:
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
    return [Questions(benchmark, benchmark.load(data.get(benchmark.name), limit)) for benchmark in benchmarks]
