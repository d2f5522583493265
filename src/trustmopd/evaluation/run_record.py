"""What is asked of which checkpoint: looked up before a model is loaded, and written down beside the responses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trustmopd.evaluation.benchmark import Benchmark
from trustmopd.evaluation.benchmarks import get_benchmark
from trustmopd.evaluation.methods import Method
from trustmopd.evaluation.rows import Rows
from trustmopd.evaluation.sampling import Sampling
from trustmopd.files import read_json, write_json
from trustmopd.recipe import TeacherSource

RECORD = "run.json"


@dataclass(frozen=True)
class Loaded:
    """A benchmark with the rows to ask."""

    benchmark: Benchmark
    rows: Rows

    def samples(self, sampling: Sampling) -> int:
        return sampling.samples or self.benchmark.samples


def load_benchmarks(names: Sequence[str], data: Mapping[str, str], limit: int | None = None) -> list[Loaded]:
    """Names, data and what grading needs: whatever is missing is told before any model is loaded."""
    benchmarks = [get_benchmark(name) for name in names]
    known = [benchmark.name for benchmark in benchmarks]
    if twice := [name for name in known if known.count(name) > 1]:
        raise ValueError(
            f"two benchmarks are called {twice[0]!r}, and would share a file. Rename one, or name it once."
        )
    if strangers := sorted(set(data) - set(known)):
        raise ValueError(f"data are given for {strangers[0]!r}, which is not evaluated. Add it to the benchmarks.")
    for benchmark in benchmarks:
        benchmark.ready()
    return [Loaded(benchmark, benchmark.load(data.get(benchmark.name), limit)) for benchmark in benchmarks]


def begin_run(folder: Path, method: Method, sampling: Sampling, benchmarks: Sequence[Loaded]) -> None:
    """A folder holds responses of one checkpoint under one way of sampling. Benchmarks, prompts and samples may be
    added to it."""
    settings = asdict(sampling)
    del settings["samples"]
    asked = {"method": method.name, "seed": method.seed, **method.source.model_dump(), "files": _files(method.source)}
    asked |= {"sampling_seed": settings.pop("seed"), **settings}
    path = folder / RECORD
    known: dict[str, Any] = {}
    if path.exists():
        found = read_record(folder)
        known = found.pop("benchmarks")
        for field, value in asked.items():
            if found.get(field) != value:
                raise ValueError(
                    f"{folder} holds an evaluation with {field} = {found.get(field)!r}, and now it is {value!r}: they "
                    "do not mix. Choose another --out."
                )
    for loaded in benchmarks:
        known[loaded.benchmark.name] = {
            "domain": loaded.benchmark.domain,
            "responses": len(loaded.rows) * loaded.samples(sampling),
            "malformed": len(loaded.rows.malformed),
        }
    write_json(path, {**asked, "benchmarks": known})


def read_record(folder: Path) -> dict[str, Any]:
    return read_json(folder / RECORD, what="the record of an evaluation", remedy="Choose another --out.")


def _files(source: TeacherSource) -> list[list[Any]]:
    """The weights' files by size and time of writing, so that a retrained checkpoint is not taken for the old one."""
    folders = [Path(place) for place in (source.model, source.adapter) if place is not None]
    return [
        [file.name, file.stat().st_size, file.stat().st_mtime_ns]
        for folder in folders
        if folder.is_dir()
        for file in sorted(_weights(folder))
    ]


def _weights(folder: Path) -> Iterator[Path]:
    for pattern in ("*.safetensors", "*.bin", "*.gguf"):
        yield from folder.glob(pattern)
