"""Records from where they lie: Hub datasets and local files. What cannot be read is named with file and line."""

import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trustmopd.data.config import Source

_SHARD = re.compile(r"(\w+)-\d{5}-of-\d{5}[.-]")  # train-00000-of-00002.parquet, as the Hub names them
READABLE = "it must be .jsonl, .json or .csv, plain or gzipped (.jsonl.gz), or .parquet. Unpack or convert it."
Record = tuple[str, dict[str, Any]]  # where it stands, for messages; and what it holds


def kind_of(path: Path) -> str:
    """The ending that says how a file is read: .jsonl of pool.jsonl and of pool.jsonl.gz."""
    inner = path.with_suffix("").suffix if path.suffix == ".gz" else ""
    return inner if inner in (".jsonl", ".json", ".csv") else path.suffix


def local_files(path: str, name: str) -> list[Path]:
    """The files that a path means; none if it is a Hub id."""
    local = Path(path)
    if local.is_file():
        if kind_of(local) not in _READERS:
            raise ValueError(f"{name}: {path} ends in {local.suffix!r}; {READABLE}")
        return [local]
    if local.is_dir():
        there = sorted(file for file in local.iterdir() if kind_of(file) in _READERS)
        # A prompt set's card is JSON beside its prompts: .json and .csv files count where there are no others.
        files = [file for file in there if kind_of(file) in (".parquet", ".jsonl")] or there
        splits = {shard[1] for file in files if (shard := _SHARD.match(file.name))}
        if len(splits) > 1:
            raise ValueError(
                f"{name}: folder {path} holds files of several splits ({', '.join(sorted(splits))}), and `split` "
                "chooses among those of the Hub alone. Move those of one split into a folder of their own."
            )
        kinds = sorted({kind_of(file) for file in files})
        if len(kinds) != 1:
            found = ", ".join(kinds) or "none"
            raise ValueError(f"{name}: folder {path} must hold files of one kind ({', '.join(_READERS)}), has {found}.")
        return files
    if kind_of(local) in _READERS or local.is_absolute() or path.startswith("."):
        raise FileNotFoundError(f"{name}: {path} does not exist. Give a file, a folder, or the id of a Hub dataset.")
    return []


def read_records(source: Source, name: str, columns: Sequence[str] | None = None) -> Iterator[Record]:
    """Rows as they are, each with its place. Of columnar sources only `columns` are read: some hold gigabytes of
    solutions beside the prompts."""
    files = local_files(source.path, name)
    for file in files:
        try:
            yield from _READERS[kind_of(file)](file, columns)
        # pyarrow's are among these, and do not name the file; the last two are those of damaged gzip files
        except (OSError, ValueError, csv.Error, EOFError, zlib.error) as error:
            named = type(error) is ValueError and str(file) in str(error)
            raise ValueError(f"{name}: {error}" if named else f"{name}: {file} cannot be read: {error}.") from None
    if not files:
        yield from _hub(source, name, columns)


def _open(path: Path) -> io.BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _jsonl(path: Path, _: Sequence[str] | None) -> Iterator[Record]:
    with _open(path) as file:
        for number, raw in enumerate(file, start=1):
            where = f"{path}, line {number}"
            if raw.strip():
                yield where, _object(_json_value(_decode(raw, where), where), where)


def _json(path: Path, _: Sequence[str] | None) -> Iterator[Record]:
    with _open(path) as file:
        rows = _json_value(_decode(file.read(), str(path)), str(path))
    if not isinstance(rows, list):
        raise ValueError(f"{path} holds {type(rows).__name__}, not a list of rows. Give [{{…}}, …], or JSON Lines.")
    for number, row in enumerate(rows):
        where = f"{path}, row {number}"
        yield where, _object(row, where)


def _csv(path: Path, _: Sequence[str] | None) -> Iterator[Record]:
    csv.field_size_limit(2**31 - 1)  # of the whole process; a prompt may be longer than the 131,072 characters it has
    with _open(path) as file:
        reader = csv.DictReader(io.StringIO(_decode(file.read(), str(path)), newline=""))
    repeated = [column for column, times in Counter(reader.fieldnames or ()).items() if times > 1]
    if repeated:
        raise ValueError(f"{path}, line 1: column {repeated[0]!r} is there more than once. Rename or drop one.")
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        if None in row or None in row.values():
            raise ValueError(f"{where}: not as many cells as the header has columns. Mend the row.")
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
                return (
                    f"{path}, row {first + place}, column {column!r}: not UTF-8 ({error.reason}). Mend or drop the row."
                )
    return f"{path}: not UTF-8 from row {first}. Mend the file."


def _hub(source: Source, name: str, columns: Sequence[str] | None) -> Iterator[Record]:
    from datasets import load_dataset

    try:
        dataset = load_dataset(
            source.path, source.subset, data_files=source.files, split=source.split, revision=source.revision
        )
    except Exception as error:  # datasets raises another class for each reason
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        instead = f", or leave it out: {name}=null" if name.startswith("comparison.") else ""
        raise ValueError(
            f"{name}: {source.path!r} is no file or folder here, and cannot be read as a Hub dataset: {reason}. "
            f"Without network, download it elsewhere and give its files: {name}.path=FILE{instead}."
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
            raise ValueError(no_column(where, column, there))
    return [name for name in there if any(name in (column, column.split(".")[0]) for column in columns)]


def no_column(where: str, column: str, there: Sequence[str]) -> str:
    remedy = "Name the right one: --column, or in a config `columns` and `where`."
    return f"{where} has no column {column!r}; there is {', '.join(there)}. {remedy}"


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
        raise ValueError(f"{place}: not valid JSON ({getattr(error, 'msg', error)}). Mend it.") from None


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f'{where} holds {str(row)[:80]!r}, not an object with columns. Write {{"prompt": …}}.')
    return row


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
