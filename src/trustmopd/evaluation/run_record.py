"""What is asked of which checkpoint: looked up before a model is loaded, and written down beside the responses."""

import fcntl
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from trustmopd.evaluation.benchmark import Benchmark
from trustmopd.evaluation.benchmarks import get_benchmark
from trustmopd.evaluation.methods import Method
from trustmopd.evaluation.rows import Rows
from trustmopd.evaluation.sampling import Sampling
from trustmopd.files import read_json, write_json
from trustmopd.recipe import TeacherSource

RECORD = "run.json"
_SCHEMA = 2


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


class Asked(TypedDict):
    """What is asked of a benchmark: every prompt of `ids`, `samples` times. This is what is scored, and no other."""

    domain: str
    ids: list[str]
    samples: int
    malformed: list[str]


@contextmanager
def run_folder(folder: Path, method: Method, sampling: Sampling, benchmarks: Sequence[Loaded]) -> Iterator[None]:
    """A folder holds responses of one checkpoint under one way of sampling, and one process writes to it at a time.
    Benchmarks, prompts and samples may be added to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FileExistsError(
            f"{folder} is, or lies below, a file: no folder can be there. Choose another --out."
        ) from None
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"{folder} is being written by another `trustmopd evaluate`. Wait for it, or choose another --out."
            ) from None
        except OSError:
            pass  # a file system without locks: there, to start it once is the user's care
        _write_record(folder, method, sampling, benchmarks)
        yield


def _write_record(folder: Path, method: Method, sampling: Sampling, benchmarks: Sequence[Loaded]) -> None:
    settings = asdict(sampling)
    del settings["samples"]
    about = {"method": method.name, "seed": method.seed, **method.source.model_dump(), "files": _files(method.source)}
    about |= {"sampling_seed": settings.pop("seed"), **settings}
    known: dict[str, Any] = {}
    if (folder / RECORD).exists():
        found = read_record(folder)
        known = found.pop("benchmarks")
        for field, value in about.items():
            if found.get(field) != value:
                raise ValueError(
                    f"{folder} holds an evaluation with {field} = {found.get(field)!r}, and now it is {value!r}: they "
                    "do not mix. Choose another --out."
                )
    for loaded in benchmarks:
        name = loaded.benchmark.name
        asked = Asked(
            domain=loaded.benchmark.domain,
            ids=[row["id"] for row in loaded.rows],
            samples=loaded.samples(sampling),
            malformed=loaded.rows.malformed,
        )
        if name in known:
            _warn_if_less(folder, name, known[name], asked)
        known[name] = asked
    write_json(folder / RECORD, {**about, "benchmarks": known}, schema_version=_SCHEMA)


def _warn_if_less(folder: Path, name: str, before: Asked, now: Asked) -> None:
    if now["samples"] < before["samples"] or not set(before["ids"]) <= set(now["ids"]):
        warnings.warn(
            f"{folder}: {name} was asked with {len(before['ids'])} prompts × {before['samples']} samples, and now with "
            f"{len(now['ids'])} × {now['samples']}. Only these are scored; what else was sampled stays in its file.",
            stacklevel=5,
        )


def read_record(folder: Path) -> dict[str, Any]:
    return read_json(
        folder / RECORD, what="the record of an evaluation", remedy="Choose another --out.", schema_version=_SCHEMA
    )


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
