"""JSON Lines, JSON, CSV and Parquet as rows, each with its place in the file for messages."""

import csv
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
#: A place, such as "pool.jsonl, line 3", and the row there, or what is wrong with it.
Read = tuple[str, Row | ValueError]


class NoColumn(ValueError):
    """A column that is not there. The caller adds the remedy: it knows where the user names columns."""


class _BadFile(ValueError):
    """The message names the file and the line."""


def kind_of(path: Path) -> str:
    """The suffix that decides how a file is read: .jsonl for pool.jsonl and for pool.jsonl.gz."""
    inner = path.with_suffix("").suffix if path.suffix == ".gz" else ""
    return inner if inner in (".jsonl", ".json", ".csv") else path.suffix


def is_readable(path: Path) -> bool:
    return kind_of(path) in _READERS


def read_rows(files: Iterable[Path], columns: Sequence[str] | None = None) -> Iterator[Read]:
    """All rows of `files`. A bad row is given as its error, so that the caller may skip it; a bad file is raised. Of
    Parquet only `columns` are read: some pools also hold gigabytes of solutions."""
    for file in files:
        try:
            yield from _READERS[kind_of(file)](file, columns)
        except (NoColumn, _BadFile):
            raise
        except (OSError, ValueError, csv.Error, EOFError, zlib.error) as error:  # pyarrow's are among them
            raise ValueError(f"{file} cannot be read: {error}. Copy or download it again.") from None


def no_column(where: str, column: str, there: Sequence[str]) -> NoColumn:
    return NoColumn(f"{where} has no column {column!r}, only {', '.join(there)}.")


def top_level(columns: Sequence[str] | None, there: list[str], where: str) -> list[str]:
    """The columns to read: `metadata` for `metadata.original_instruction`."""
    if columns is None:
        return there
    for column in columns:
        if column not in there and column.split(".")[0] not in there:
            raise no_column(where, column, there)
    return [name for name in there if any(name in (column, column.split(".")[0]) for column in columns)]


def _jsonl(path: Path, _: Sequence[str] | None) -> Iterator[Read]:
    with _unpacked(path) as file:
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                yield f"{path}, line {number}", _json_row(raw)


def _json_row(raw: bytes) -> Row | ValueError:
    try:
        return _object(json.loads(raw.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        return ValueError(f"byte {error.start} is not UTF-8")
    except json.JSONDecodeError as error:  # whose own message counts lines of the row
        return ValueError(f"not valid JSON (column {error.colno}: {error.msg})")
    except RecursionError as error:
        return ValueError(f"not valid JSON ({error})")


def _json(path: Path, _: Sequence[str] | None) -> Iterator[Read]:
    text = _text(path)
    try:
        rows = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise _BadFile(f"{path}, line {line}: not valid JSON ({getattr(error, 'msg', error)}). Fix it.") from None
    if not isinstance(rows, list):
        raise _BadFile(f"{path} holds {type(rows).__name__}, not a list of rows. Give [{{…}}, …], or JSON Lines.")
    for number, row in enumerate(rows):
        yield f"{path}, row {number}", _object(row)


def _csv(path: Path, _: Sequence[str] | None) -> Iterator[Read]:
    csv.field_size_limit(2**31 - 1)  # for the whole process: prompts may be longer than the default 131,072 characters
    reader = csv.DictReader(io.StringIO(_text(path), newline=""))
    if repeated := [column for column, times in Counter(reader.fieldnames or ()).items() if times > 1]:
        raise _BadFile(f"{path}, line 1: column {repeated[0]!r} appears twice. Rename or remove one.")
    for row in reader:
        ragged = None in row or None in row.values()
        where = f"{path}, line {reader.line_num}"
        yield where, ValueError("it has more or fewer cells than the header") if ragged else row


def _parquet(path: Path, columns: Sequence[str] | None) -> Iterator[Read]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        number = 0
        for batch in file.iter_batches(columns=top_level(columns, file.schema_arrow.names, str(path))):
            try:
                rows = batch.to_pylist()
            except UnicodeDecodeError:
                rows = [_decoded(batch, place) for place in range(len(batch))]
            for row in rows:
                yield f"{path}, row {number}", row
                number += 1


def _decoded(batch: Any, place: int) -> Row | ValueError:
    row = {}
    for column in batch.schema.names:
        try:
            row[column] = batch[column][place].as_py()
        except UnicodeDecodeError:
            return ValueError(f"column {column!r} is not UTF-8")
    return row


_READERS = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}


def _unpacked(path: Path) -> io.BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _text(path: Path) -> str:
    with _unpacked(path) as file:
        raw = file.read()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _BadFile(f"{path}, line {line}: not UTF-8. Convert the file.") from None


def _object(row: Any) -> Row | ValueError:
    return row if isinstance(row, dict) else ValueError(f"{row!r:.60} is not a row with columns")
