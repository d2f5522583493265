"""Benchmark rows from the Hub or a local file. A bad row is named, counted and left out; the others are read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trustmopd.prompts.reading.formats import read_rows
from trustmopd.prompts.reading.sources import Location, hub_rows, is_of, local_files, named, split_of

Row = Mapping[str, Any]
Convert = Callable[[Mapping[str, Any], int], Row]


class Rows(list[Row]):
    """Rows with `id` and `prompt`; `malformed` lists those left out and why; `complaint` is the same in short.
    `files` are the local ones they are from."""

    files: list[Path]
    malformed: list[str]
    complaint: str


def read_local(path: Path, convert: Convert, name: str, limit: int | None = None, split: str = "test") -> Rows:
    """Of a folder whose files name their split, those of `split`: GSM8K's train rows are not a benchmark."""
    with named(f"benchmark {name}"):
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist. Give a file of the benchmark.")
        if path.is_dir() and any(is_of(split_of(file.name) or "", "test") for file in path.iterdir()):
            split = "test"  # IFEval's is called train on the Hub, but some copies call it test
        files = local_files(Location(str(path), split, split_option="it follows from the benchmark"))
        rows = _convert(read_rows(files), convert, str(path), limit)
        rows.files = files
        return rows


def read_hub(hub: str, config: str | None, split: str, convert: Convert, name: str, limit: int | None = None) -> Rows:
    location = Location(hub, split, config, path_option=f"give a local copy: --data {name}=FILE")
    with named(f"benchmark {name}"):
        return _convert(hub_rows(location), convert, hub, limit)


def read_generated(sources: Iterable[Mapping[str, Any]], convert: Convert, name: str) -> Rows:
    return _convert(((f"prompt {i}", source) for i, source in enumerate(sources)), convert, name, None)


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
    sources: Iterable[tuple[str, Mapping[str, Any] | ValueError]], convert: Convert, whole: str, limit: int | None
) -> Rows:
    rows = Rows()
    refused: dict[str, list[str]] = {}
    rows.files, rows.malformed = [], []
    seen: set[str] = set()
    for number, (where, source) in enumerate(sources):
        if limit is not None and len(rows) >= limit:
            break
        try:
            if isinstance(source, ValueError):
                raise source
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
        raise ValueError(f"{whole} has no usable row{first}. Check that this is the right file.")
    rows.complaint = _complaint(refused)
    return rows


def _complaint(refused: Mapping[str, Sequence[str]]) -> str:
    """Each reason once, with the first row that it holds for."""
    shown = [
        f"{places[0]}{f' and {len(places) - 1} more' if len(places) > 1 else ''}: {reason}"
        for reason, places in list(refused.items())[:3]
    ]
    return "; ".join([*shown, "…"] if len(refused) > 3 else shown)
