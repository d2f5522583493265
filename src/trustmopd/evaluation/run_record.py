"""What is asked of which checkpoint: looked up before a model is loaded, and written down beside the responses."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from trustmopd.evaluation.benchmark import Benchmark
from trustmopd.evaluation.benchmarks import get_benchmark
from trustmopd.evaluation.checkpoint import weight_files
from trustmopd.evaluation.methods import Method
from trustmopd.evaluation.rows import Rows
from trustmopd.evaluation.sampling import Sampling
from trustmopd.files import locked, read_json, write_json
from trustmopd.runs.layout import ASKED, SCORES

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
    _refuse_to_write_over(folder, benchmarks)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FileExistsError(
            f"{folder} is, or lies below, a file: no folder can be there. Choose another --out."
        ) from None
    with locked(folder, "Wait for it, or choose another --out."):
        _check_same(folder, method, sampling)
        _write_record(folder, method, sampling, benchmarks)
        yield


def check_run_folder(folder: Path, method: Method, sampling: Sampling, benchmarks: Sequence[Loaded]) -> None:
    """Refuse a folder that holds something else, before another row is sampled for hours."""
    _refuse_to_write_over(folder, benchmarks)
    _check_same(folder, method, sampling)


def _check_same(folder: Path, method: Method, sampling: Sampling) -> None:
    if not _holds_responses(folder):
        return
    found = read_record(folder)
    for field, value in _about(method, sampling).items():
        if found.get(field) != value:
            raise ValueError(
                f"{folder} holds an evaluation with {field} = {found.get(field)!r}, and now it is {value!r}: they do "
                "not mix. Remove that folder to evaluate anew, or choose another --out."
            )


def check_scores(folders: Iterable[Path], benchmarks: Sequence[Loaded]) -> None:
    """A user's own set may be called scores.json, as what is written when all is sampled."""
    data = [file for loaded in benchmarks for file in loaded.rows.files]
    for folder in folders:
        _refuse(folder, [scores := folder / SCORES], [*data, *filter(_is_foreign, [scores])])


def _refuse_to_write_over(folder: Path, benchmarks: Sequence[Loaded]) -> None:
    """A user's data in the folder may be called as what is written there, and a journal cuts off half a line."""
    data = [file for loaded in benchmarks for file in loaded.rows.files]
    journals = [folder / f"{each.benchmark.name}{end}" for each in benchmarks for end in (".responses.jsonl", ".jsonl")]
    foreign = [] if (folder / ASKED).exists() else journals  # the record is written first
    _refuse(folder, journals, [*data, *foreign])
    _refuse(folder, ours := [folder / ASKED, folder / SCORES], [*data, *filter(_is_foreign, ours)])


def _is_foreign(path: Path) -> bool:
    """Whether a file is called as ours and is not: each of ours has a schema version. A damaged one is told of when it
    is read."""
    try:
        return "schema_version" not in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def _refuse(folder: Path, written: Iterable[Path], kept: Sequence[Path]) -> None:
    for path in written:
        if path.exists() and any(file.exists() and path.samefile(file) for file in kept):
            raise FileExistsError(
                f"--out {folder} would write over {path}, which no evaluation wrote; choose another --out."
            )


def _write_record(folder: Path, method: Method, sampling: Sampling, benchmarks: Sequence[Loaded]) -> None:
    known: dict[str, Any] = read_record(folder)["benchmarks"] if _holds_responses(folder) else {}
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
    write_json(folder / ASKED, {**_about(method, sampling), "benchmarks": known}, schema_version=_SCHEMA)


def _about(method: Method, sampling: Sampling) -> dict[str, Any]:
    """What the responses of one folder have in common: checkpoint and sampling."""
    settings = asdict(sampling)
    del settings["samples"]
    about = {"method": method.name, "seed": method.seed, **method.source.model_dump()}
    about |= {"base": method.base, "files": weight_files(method.source, method.base)}
    if method.mean_of:  # every recipe keeps its own copy
        made_from = [" + ".join(filter(None, (each.model, each.adapter))) for each in method.mean_of]
        files = [file for each in method.mean_of for file in weight_files(each, None if each.model else method.base)]
        about |= {"model": f"mean of {', '.join(made_from)}", "files": files}
    return {**about, "sampling_seed": settings.pop("seed"), **settings}


def _holds_responses(folder: Path) -> bool:
    """Without a response nothing is mixed: the record is then of a checkpoint that could not be loaded."""
    return (folder / ASKED).exists() and any(journal.stat().st_size for journal in folder.glob("*.jsonl"))


def _warn_if_less(folder: Path, name: str, before: Asked, now: Asked) -> None:
    if now["samples"] < before["samples"] or not set(before["ids"]) <= set(now["ids"]):
        warnings.warn(
            f"{folder}: {name} was asked with {len(before['ids'])} prompts × {before['samples']} samples, and now with "
            f"{len(now['ids'])} × {now['samples']}. Only these are scored; what else was sampled stays in its file.",
            stacklevel=5,
        )


def read_record(folder: Path) -> dict[str, Any]:
    return read_json(
        folder / ASKED, what="the record of an evaluation", remedy="Choose another --out.", schema_version=_SCHEMA
    )
