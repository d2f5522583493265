"""Benchmark rows from the Hub or a local file. One bad row costs itself; it is named, counted and left out."""

import gzip
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trustmopd.splits import is_known, is_of, split_of

Row = Mapping[str, Any]
Convert = Callable[[Mapping[str, Any], int], Row]
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")


class Rows(list[Row]):
    """Rows with `id` and `prompt`; `malformed` says which were left out, and why, and `complaint` the same in short.
    `files` are the local ones they are from."""

    files: list[Path]
    malformed: list[str]
    complaint: str


def read_local(path: Path, convert: Convert, name: str, limit: int | None = None, split: str = "test") -> Rows:
    """Of a folder, the files that name `split`, or, if none does, those that name no split: GSM8K's train rows are no
    benchmark."""
    if not path.exists():
        raise FileNotFoundError(f"benchmark {name}: there is no {path}. Give a file ({', '.join(SUFFIXES)}) of it.")
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    if not files or not all(file.name.endswith(SUFFIXES) for file in files):
        raise ValueError(f"benchmark {name}: {path} is no {', '.join(SUFFIXES)} file and has none. Give one.")
    if path.is_dir():
        files = _of_split(files, split, path, name)
    rows = _convert((pair for file in files for pair in _read(file)), convert, name, str(path), limit)
    rows.files = files
    return rows


def _of_split(files: list[Path], split: str, folder: Path, name: str) -> list[Path]:
    told = {file: its for file in files if (its := split_of(file.name)) and is_known(its)}
    if any(is_of(its, "test") for its in told.values()):
        split = "test"  # IFEval's is called train on the Hub, and not where there is a test split beside it
    wanted = [file for file, its in told.items() if is_of(its, split)] or [file for file in files if file not in told]
    if not wanted:
        raise ValueError(
            f"benchmark {name}: {folder} has no file of split {split!r}, only of "
            f"{', '.join(sorted(set(told.values())))}. Give the file that you mean instead of the folder."
        )
    if others := [file.name for file in files if file not in wanted]:
        warnings.warn(
            f"benchmark {name}: of {folder} is left out what is not of split {split!r}: {', '.join(others)}",
            stacklevel=4,
        )
    return wanted


def read_hub(hub: str, config: str | None, split: str, convert: Convert, name: str, limit: int | None = None) -> Rows:
    from datasets import load_dataset

    where = hub if config is None else f"{hub}, config {config}"
    try:
        dataset = load_dataset(hub, config, split=split)
    except Exception as error:  # datasets and huggingface_hub raise a class for each way to fail
        reason = str(error).strip().partition("\n")[0]
        raise FileNotFoundError(
            f"benchmark {name} needs the Hub dataset {where} (split {split}), which cannot be had ({reason}). Go "
            f"online once to fill the cache, or give a local copy: --data {name}=FILE."
        ) from error
    return _convert(((f"{where}, row {i}", source) for i, source in enumerate(dataset)), convert, name, where, limit)


def read_generated(sources: Iterable[Mapping[str, Any]], convert: Convert, name: str) -> Rows:
    return _convert(((f"prompt {i}", source) for i, source in enumerate(sources)), convert, name, name)


def text_of(source: Mapping[str, Any], *fields: str) -> str:
    """The first of `fields` that is there, which must hold text (or a number)."""
    for field in fields:
        value = source.get(field)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value
        if value is not None:
            raise ValueError(f"{field} = {value!r:.60} is not text")
    raise ValueError(f"it has no {' or '.join(fields)}")


def _convert(
    sources: Iterable[tuple[str, Any]], convert: Convert, name: str, whole: str, limit: int | None = None
) -> Rows:
    rows = Rows()
    refused: dict[str, list[str]] = {}
    rows.files, rows.malformed = [], []
    seen: set[str] = set()
    for number, (where, source) in enumerate(sources):
        if limit is not None and len(rows) >= limit:
            break
        try:
            if isinstance(source, Exception):
                raise source
            if not isinstance(source, Mapping):
                raise ValueError(f"{source!r:.60} is not a row of fields")
            row = convert(source, number)
            if row["id"] in seen:
                raise ValueError(f"its id {row['id']!r} was used before")
            seen.add(row["id"])
            rows.append(row)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            rows.malformed.append(f"{where}: {reason}")
            refused.setdefault(reason, []).append(where)
    if not rows:
        first = f": {rows.malformed[0]}" if rows.malformed else ": it is empty"
        raise ValueError(f"benchmark {name}: {whole} has no usable row{first}. Check that it is a set of {name}.")
    rows.complaint = _complaint(refused)
    return rows


def _complaint(refused: Mapping[str, Sequence[str]]) -> str:
    """Each reason once, with the first row that it holds for."""
    shown = [
        f"{places[0]}{f' and {len(places) - 1} more' if len(places) > 1 else ''}: {reason}"
        for reason, places in list(refused.items())[:3]
    ]
    return "; ".join([*shown, "…"] if len(refused) > 3 else shown)


def _read(path: Path) -> Iterator[tuple[str, Any]]:
    """Rows with the place that a person would look for them, or the error in the row's stead."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        try:
            for i, row in enumerate(pq.read_table(path).to_pylist()):
                yield f"{path}, row {i}", row
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} is not a whole Parquet file ({error}). Copy or download it again.") from error
        return
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        if path.suffix == ".json":
            try:
                rows = json.load(file)
            except ValueError as error:
                raise ValueError(f"{path} is not whole JSON ({error}). Copy or download it again.") from error
            for i, row in enumerate(rows if isinstance(rows, list) else [rows]):
                yield f"{path}, row {i}", row
            return
        try:
            for i, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    yield f"{path}, line {i}", json.loads(line)
                except ValueError as error:
                    yield f"{path}, line {i}", ValueError(f"not JSON ({error})")
        except (EOFError, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is not a whole gzip file ({error}). Copy or download it again.") from error
