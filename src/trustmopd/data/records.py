"""Records from where they lie: Hub datasets and local files. What cannot be read is named with file and line."""

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trustmopd.data.config import EVERY_SPLIT, Source
from trustmopd.files import meant_here
from trustmopd.splits import is_known, is_of, split_of

READABLE = "it must be .jsonl, .json or .csv, plain or gzipped (.jsonl.gz), or .parquet. Unpack or convert it."
Record = tuple[str, dict[str, Any]]  # where it stands, for messages; and what it holds


class NoColumn(ValueError):
    """A column that is not there. The remedy is added by who knows where columns are named."""


def kind_of(path: Path) -> str:
    """The ending that says how a file is read: .jsonl of pool.jsonl and of pool.jsonl.gz."""
    inner = path.with_suffix("").suffix if path.suffix == ".gz" else ""
    return inner if inner in (".jsonl", ".json", ".csv") else path.suffix


def local_files(source: Source, name: str) -> list[Path]:
    """The files that a source means; none if it is a Hub dataset. A file is read whole: `split`, `subset` and `files`
    choose among several, and may stand in a config whose path was replaced by one's own file."""
    local = Path(source.path)
    if local.is_dir():
        return _in_folder(local, source, name)
    if local.is_file():
        if kind_of(local) not in _READERS:
            raise ValueError(f"{name}: {local} ends in {local.suffix!r}; {READABLE}")
        return [local]
    if kind_of(local) in _READERS or meant_here(source.path):
        first = "" if kind_of(local) in _READERS else " A prompt set is built first: trustmopd data build CONFIG.yaml."
        raise FileNotFoundError(
            f"{name}: {source.path} does not exist. Give a file, a folder, or the id of a Hub dataset.{first}"
        )
    return []


def lacks_subset(source: Source) -> bool:
    """Whether a folder was read whole because it has no such folder inside, as one's own in a config for the Hub."""
    local = Path(source.path)
    return bool(source.subset and not source.files and local.is_dir() and not (local / source.subset).is_dir())


def _in_folder(folder: Path, source: Source, name: str) -> list[Path]:
    """`files`, `subset` and `split` choose as they do on the Hub; a subset is a folder inside, where there are any."""
    if source.files:
        files = _matching(folder, source.files, name)
    else:
        if lacks_subset(source):
            if subsets := sorted(inner.name for inner in folder.iterdir() if inner.is_dir() and _readable(inner)):
                raise ValueError(
                    f"{name}: folder {folder} has no subset {source.subset!r}, only {', '.join(subsets)}. Choose one "
                    f"of them: {name}.subset; or null for the files of {folder} itself."
                )
        elif source.subset:
            folder /= source.subset
        there = _readable(folder)
        # A prompt set's card is JSON beside its prompts: .json and .csv files count where there are no others.
        files = [file for file in there if kind_of(file) in (".parquet", ".jsonl")] or there
        if not files:
            raise ValueError(
                f"{name}: folder {folder} holds no {', '.join(_READERS)} file. Give the folder or the file of the rows."
            )
        files = _of_split(files, source.split, f"{name}: folder {folder}", _split_remedy(name))
    kinds = sorted({kind_of(file) for file in files})
    if len(kinds) > 1 or kinds[0] not in _READERS:
        readable, found = ", ".join(_READERS), ", ".join(kinds)
        raise ValueError(f"{name}: folder {folder} must give files of one kind ({readable}), has {found}. Give a file.")
    return files


def _readable(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if kind_of(file) in _READERS)


def _matching(folder: Path, pattern: str, name: str) -> list[Path]:
    try:
        files = sorted(file for file in folder.glob(pattern) if file.is_file())
    except (ValueError, NotImplementedError) as error:
        raise ValueError(f"{name}.files = {pattern!r} is no pattern inside {folder}: {error}.") from None
    if not files:
        raise ValueError(f"{name}.files = {pattern!r}: no file of {folder} matches. Fix the pattern, or write null.")
    return files


def _of_split(files: list[Path], split: str | None, where: str, remedy: str) -> list[Path]:
    """Those of one split, where files name theirs: nobody should train on test rows that lie in the same folder, or
    compare with the train rows alone because no split was named."""
    named = {file: told for file in files if (told := split_of(file.name))}
    splits = sorted(set(named.values()))
    unnamed = [file.name for file in files if file not in named]
    if not named or split == EVERY_SPLIT or (not unnamed and len(splits) == 1 and not is_known(splits[0])):
        return files  # also part-00000-of-00002: a word, but no split
    if unnamed:
        raise ValueError(
            f"{where} has files that name their split ({', '.join(splits)}), and {unnamed[0]}, which does not. Move it "
            "elsewhere, or give a file instead of the folder."
        )
    if split is None:
        if len(splits) > 1:
            raise ValueError(f"{where} has files of several splits ({', '.join(splits)}). Choose one: {remedy}.")
        return files
    chosen = [file for file, told in named.items() if is_of(told, split)]
    if not chosen:
        raise ValueError(
            f"{where} has no file of split {split!r}, only of {', '.join(splits)}. Choose another split, or give a "
            "file instead of the folder."
        )
    return chosen


def read_records(source: Source, name: str, columns: Sequence[str] | None = None) -> Iterator[Record]:
    """Rows as they are, each with its place. Of columnar sources only `columns` are read: some hold gigabytes of
    solutions beside the prompts."""
    files = local_files(source, name)
    for file in files:
        try:
            yield from _READERS[kind_of(file)](file, columns)
        # pyarrow's are among these, and do not name the file; the last two are those of damaged gzip files
        except (OSError, ValueError, csv.Error, EOFError, zlib.error) as error:
            if type(error) in (ValueError, NoColumn) and str(file) in str(error):
                raise type(error)(f"{name}: {error}") from None
            raise ValueError(f"{name}: {file} cannot be read: {error}.") from None
    if not files:
        yield from _hub(source, name, columns)


def read_file(path: Path) -> Iterator[Record]:
    return _READERS[kind_of(path)](path, None)


def unpacked(path: Path) -> io.BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _jsonl(path: Path, _: Sequence[str] | None) -> Iterator[Record]:
    with unpacked(path) as file:
        for number, raw in enumerate(file, start=1):
            where = f"{path}, line {number}"
            if raw.strip():
                yield where, _object(_json_value(_decode(raw, where), where), where)


def _json(path: Path, _: Sequence[str] | None) -> Iterator[Record]:
    with unpacked(path) as file:
        rows = _json_value(_decode(file.read(), str(path)), str(path))
    if not isinstance(rows, list):
        raise ValueError(f"{path} holds {type(rows).__name__}, not a list of rows. Give [{{…}}, …], or JSON Lines.")
    for number, row in enumerate(rows):
        where = f"{path}, row {number}"
        yield where, _object(row, where)


def _csv(path: Path, _: Sequence[str] | None) -> Iterator[Record]:
    csv.field_size_limit(2**31 - 1)  # of the whole process; a prompt may be longer than the 131,072 characters it has
    with unpacked(path) as file:
        reader = csv.DictReader(io.StringIO(_decode(file.read(), str(path)), newline=""))
    repeated = [column for column, times in Counter(reader.fieldnames or ()).items() if times > 1]
    if repeated:
        raise ValueError(f"{path}, line 1: column {repeated[0]!r} is there more than once. Rename or drop one.")
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        if None in row or None in row.values():
            raise ValueError(f"{where}: not as many cells as the header has columns. Fix the row.")
        yield where, row


def _parquet(path: Path, columns: Sequence[str] | None) -> Iterator[Record]:
    with pq.ParquetFile(path) as file:
        number = 0
        for batch in file.iter_batches(columns=_top_level(columns, file.schema_arrow.names, str(path))):
            try:
                rows = batch.to_pylist()
            except UnicodeDecodeError:
                raise ValueError(_not_utf8(batch, path, number)) from None
            for row in rows:
                yield f"{path}, row {number}", row
                number += 1


def _not_utf8(batch: pa.RecordBatch, path: Path, first: int) -> str:
    for column in batch.schema.names:
        for place, value in enumerate(batch[column]):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                return f"{path}, row {first + place}, column {column!r}: not UTF-8 ({error.reason}). Fix or drop it."
    return f"{path}: not UTF-8 from row {first}. Fix the file."


def _hub(source: Source, name: str, columns: Sequence[str] | None) -> Iterator[Record]:
    from datasets import load_dataset

    try:
        dataset = load_dataset(
            source.path, source.subset, data_files=source.files, split=source.split or "train", revision=source.revision
        )
    except Exception as error:  # datasets raises another class for each reason
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(
            f"{name}: {source.path!r} is no file or folder here, and cannot be read as a Hub dataset: {reason}. "
            f"Without network, download it elsewhere and give its files: {_path_remedy(name)}."
        ) from None
    where = f"Hub dataset {source.path}"
    for number, row in enumerate(dataset.select_columns(_top_level(columns, dataset.column_names, f"{name}: {where}"))):
        yield f"{where}, row {number}", row


def _top_level(columns: Sequence[str] | None, there: list[str], where: str) -> list[str]:
    """The columns to read: `metadata` for `metadata.original_instruction`."""
    if columns is None:
        return there
    for column in columns:
        if column not in there and column.split(".")[0] not in there:
            raise NoColumn(no_column(where, column, there))
    return [name for name in there if any(name in (column, column.split(".")[0]) for column in columns)]


def no_column(where: str, column: str, there: Sequence[str]) -> str:
    return f"{where} has no column {column!r}; there is {', '.join(there)}."


def column_remedy(name: str) -> str:
    """Where the columns of a source are named: in a config, or at the command line."""
    if name.startswith("--against"):
        return f"Name the right one: {name}:COLUMN."
    if name == "candidates":
        return "Name the right one: --column, or --parent for parents."
    return f"Name the right one in {name}.columns or {name}.where."


def _split_remedy(name: str) -> str:
    return "--split" if name == "candidates" else f"set {name}.split (`{EVERY_SPLIT}` for every one)"


def _path_remedy(name: str) -> str:
    if name.startswith("--against"):
        return "--against FILE:COLUMN"
    if name == "candidates":
        return "trustmopd data decontaminate FILE"
    instead = f", or leave it out: {name}=null" if name.startswith("comparison.") else ""
    return f"{name}.path=FILE{instead}"


_READERS = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        place = f"{where}, byte {error.start}" if ", line" in where else f"{where}, line {line}"
        raise ValueError(f"{place}: not UTF-8 ({error.reason}). Convert the file.") from None


def _json_value(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        place = where if ", line" in where else f"{where}, line {line}"
        raise ValueError(f"{place}: not valid JSON ({getattr(error, 'msg', error)}). Fix it.") from None


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f'{where} holds {str(row)[:80]!r}, not an object with columns. Write {{"prompt": …}}.')
    return row


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
