"""Decontaminating one file: its rows as they are, without those that repeat others."""

import json
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trustmopd.data.card import write_lines, write_table
from trustmopd.data.config import EVERY_SPLIT, Columns, Source
from trustmopd.data.corpora import Pool, read_pool
from trustmopd.data.decontaminate import Screening, decontaminate
from trustmopd.data.records import local_files, read_records
from trustmopd.files import write_json


def screen_file(
    candidates: str,
    against: Sequence[str],
    out: Path,
    *,
    column: str = "prompt",
    parent: str | None = None,
    split: str | None = None,
    ngram: int = 5,
    threshold: float = 0.8,
    overwrite: bool = False,
    progress: bool = False,
) -> tuple[Screening[int], Path, list[tuple[str, Pool]]]:
    """Write the rows kept, unchanged, to `out`, and what was removed and why beside it. Also returns what was compared
    with. `split` is the candidates'."""
    source = Source(path=candidates, split=split, columns=Columns(prompt=column, parent=parent))
    others = [_comparison(each) for each in against]
    listing = out.with_name(f"{out.stem}.removed.json")
    _check_out(out, listing, {"candidates": source} | {f"--against {other.path}": other for other in others}, overwrite)
    rows = read_pool("candidates", source, progress=progress).rows
    compared = [(other.path, read_pool(f"--against {other.path}", other, progress=progress)) for other in others]
    comparison = [(path, place, row.text) for path, pool in compared for place, row in enumerate(pool.rows)]
    table = None
    if out.suffix == ".parquet":  # what cannot be written is told before minutes are spent
        table = _table(source)
    else:
        _check_lines(source)
    found = decontaminate(
        [row.text for row in rows],
        [text for _, _, text in comparison],
        parents=[row.parent for row in rows],
        ngram=ngram,
        threshold=threshold,
        progress=progress,
    )
    kept = set(found.kept)
    if table is not None:
        write_table(out, table.filter(pa.array([row in kept for row in range(len(rows))])))
    else:
        write_lines(out, (r for row, (_, r) in enumerate(read_records(source, "candidates")) if row in kept))
    removed = []
    for (place, rule, text, similarity), match in zip(found.removed, found.matched, strict=True):
        path, row = comparison[match][:2] if rule.startswith("cross") else (candidates, match)
        what = {"row": place, "text": rows[place].text, "parent": rows[place].parent}
        why = {"rule": rule, "similarity": similarity, "matched": text, "matched_source": path, "matched_row": row}
        removed.append(what | why)
    sources = [{"source": path, "files": [*pool.files], "rows": len(pool.rows)} for path, pool in compared]
    return found, write_json(listing, {"counts": found.counts, "compared": sources, "removed": removed}), compared


def _comparison(against: str) -> Source:
    """PATH or PATH:COLUMN. A path that is there is taken whole, should it have a colon itself. Every split is read: to
    compare with too much loses a row, which is told, and with too little lets a test row through."""
    path, colon, column = against.rpartition(":")
    if not colon or Path(against).exists():
        path, column = against, "prompt"
    return Source(path=path, split=EVERY_SPLIT, columns=Columns(prompt=column))


def _check_out(out: Path, listing: Path, inputs: dict[str, Source], overwrite: bool) -> None:
    if out.suffix not in (".jsonl", ".parquet"):
        raise ValueError(f"--out {out} ends in {out.suffix!r}; rows are written as .jsonl or .parquet.")
    read = {file.resolve() for name, source in inputs.items() for file in local_files(source, name)}
    for file in (out, listing):
        if file.resolve() in read:
            raise ValueError(f"{file} would be written, and is among the files that are read. Choose another --out.")
        if file.is_dir():
            raise FileExistsError(f"{file} is a folder. Choose another --out.")
        if file.exists() and not overwrite:
            raise FileExistsError(f"{file} is there already. Choose another --out, or say --overwrite to replace it.")


def _check_lines(source: Source) -> None:
    for where, record in read_records(source, "candidates"):
        for column, value in record.items():
            try:
                json.dumps({column: value}, ensure_ascii=False).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise ValueError(
                    f"candidates: {where}, column {column!r} ({type(value).__name__}) cannot be written as JSON: "
                    f"{error}. Fix the row or drop the column; from .parquet to .parquet all is kept as it is."
                ) from None


def _table(source: Source) -> pa.Table:
    """All rows, so that columns and their types do not hang on which are kept."""
    files = local_files(source, "candidates")
    if files and all(file.suffix == ".parquet" for file in files):  # no detour through Python, which has other types
        try:
            return pa.concat_tables([pq.read_table(file) for file in files], promote_options="default")
        except pa.ArrowInvalid as error:
            raise ValueError(f"candidates: the files of {source.path} do not make one table: {error}.") from None
    places, records = zip(*read_records(source, "candidates"), strict=True)
    columns = dict.fromkeys(column for record in records for column in record)
    return pa.table({column: _array(column, places, records) for column in columns})


def _array(column: str, places: Sequence[str], records: Sequence[dict[str, Any]]) -> pa.Array:
    values = [record.get(column) for record in records]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        first = bisect_left(range(1, len(values)), True, key=lambda size: not _one_type(values[:size]))
        raise ValueError(
            f"candidates: {places[first]}, column {column!r} holds {str(values[first])[:40]!r}, which does not go into "
            f"one column of a table with the rows before it ({error}). Fix it, or write .jsonl."
        ) from None


def _one_type(values: list[Any]) -> bool:
    try:
        pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return False
    return True
