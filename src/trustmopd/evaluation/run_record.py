"""The record of an evaluation: whose responses a folder has, how they were sampled, and what was asked."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trustmopd.evaluation.benchmarks import Questions
from trustmopd.evaluation.entries import Entry, weight_files
from trustmopd.evaluation.sampling import Sampling
from trustmopd.runs import EntryDirectory
from trustmopd.runs.schemas import read_file, write_file
from trustmopd.util.files import locked

#: Of a checkpoint. Files of the same content are the same weights, wherever they are.
_PLACE = ("model", "adapter", "base", "revision")


@contextmanager
def run_folder(folder: Path, entry: Entry, sampling: Sampling, benchmarks: Sequence[Questions]) -> Iterator[None]:
    """A folder holds responses of one checkpoint under one way of sampling, and one process writes to it at a time.
    Benchmarks, prompts and samples may be added to it."""
    check_run_folder(folder, entry, sampling, benchmarks)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FileExistsError(f"{folder} is, or lies below, a file. Choose another --out.") from None
    with locked(folder, "Wait for it, or choose another --out."):
        _write_record(EntryDirectory(folder), entry, sampling, benchmarks)
        yield


def check_run_folder(folder: Path, entry: Entry, sampling: Sampling, benchmarks: Sequence[Questions]) -> None:
    """Refuse a folder that holds something else, before another entry is sampled for hours."""
    files = EntryDirectory(folder)
    data = {file.resolve() for asked in benchmarks for file in asked.rows.files}
    for path in [path(asked.benchmark.name) for asked in benchmarks for path in (files.responses, files.graded)]:
        # A journal without a record, which is written first, is a file of the user's, as a set of rows is.
        if path.exists() and (not files.record.exists() or path.resolve() in data):
            raise FileExistsError(f"{path} would be overwritten, and no evaluation wrote it. Choose another --out.")
    before, now = _record_of_responses(files), _about(entry, sampling)
    if before is not None and (field := differing({name: before.get(name) for name in now}, now)):
        raise ValueError(
            f"{folder} holds an evaluation with {field} = {before.get(field)!r}, and now it is {now[field]!r}: they "
            "do not mix. Remove that folder to evaluate again, or choose another --out."
        )


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """A field in which two records differ: their responses do not mix. Earlier releases recorded neither engine nor
    graders, so one that is not recorded differs from none."""
    moved = _PLACE if first.get("files") and first["files"] == second.get("files") else ()
    for field in (field for field in {**first, **second} if field not in moved):
        values = first.get(field), second.get(field)
        if values[0] != values[1] and not (field in ("engine", "graders") and None in values):
            return field
    return None


def _write_record(files: EntryDirectory, entry: Entry, sampling: Sampling, benchmarks: Sequence[Questions]) -> None:
    known = (_record_of_responses(files) or {}).get("benchmarks", {})
    for loaded in benchmarks:
        name = loaded.benchmark.name
        asked: dict[str, Any] = {
            "domain": loaded.benchmark.domain,
            "ids": [each["id"] for each in loaded.rows],
            "samples": sampling.samples or loaded.benchmark.samples,
            "malformed": loaded.rows.malformed,
            "graders": loaded.benchmark.graders,
        }
        before = known.get(name, asked)
        if asked["samples"] < before["samples"] or not set(before["ids"]) <= set(asked["ids"]):
            warnings.warn(
                f"{files.path}: {name} was asked with {len(before['ids'])} prompts × {before['samples']} samples, and "
                f"now with {len(asked['ids'])} × {asked['samples']}. Only these are scored; the other responses stay "
                "in the file.",
                stacklevel=4,
            )
        known[name] = asked
    write_file(files.record, {**_about(entry, sampling), "benchmarks": known})


def _about(entry: Entry, sampling: Sampling) -> dict[str, Any]:
    """What the responses of one folder have in common: checkpoint and sampling."""
    settings = sampling.model_dump(exclude={"samples"})
    about = {"method": entry.name, "seed": entry.seed, **entry.source.model_dump(exclude={"reference"})}
    about |= {"base": entry.base, "files": weight_files(entry.source, entry.base)}
    if entry.mean_of:  # every recipe keeps its own copy
        made_from = [" + ".join(filter(None, (teacher.model, teacher.adapter))) for teacher in entry.mean_of]
        bases = [None if teacher.model else entry.base for teacher in entry.mean_of]
        files = [file for pair in zip(entry.mean_of, bases, strict=True) for file in weight_files(*pair)]
        about |= {"model": f"mean of {', '.join(made_from)}", "files": files}
    return {**about, "sampling_seed": settings.pop("seed"), **settings}


def _record_of_responses(files: EntryDirectory) -> dict[str, Any] | None:
    """None where nothing was sampled: the record is then of a checkpoint that could not be loaded."""
    has_responses = any(journal.stat().st_size for journal in files.path.glob("*.jsonl"))
    return read_record(files.path) if files.record.exists() and has_responses else None


def read_record(folder: Path) -> dict[str, Any]:
    what, remedy = "the record of an evaluation", "Restore this file, or evaluate again with another --out."
    return read_file(EntryDirectory(folder).record, what=what, remedy=remedy)
