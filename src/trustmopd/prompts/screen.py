"""Decontaminating one file: its rows as they are, without those that repeat others."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trustmopd.prompts.build_config import Columns, PoolSource
from trustmopd.prompts.corpora import Pool, read_pool
from trustmopd.prompts.decontaminate import Screening, decontaminate
from trustmopd.prompts.prompt_card import write_table
from trustmopd.prompts.reading.sources import EVERY_SPLIT, Location, local_files, named, read_source
from trustmopd.util.files import write_json, write_text


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
) -> tuple[Screening[int], Path, list[tuple[str, Pool]]]:
    """Write the rows kept, unchanged, to `out`, and next to it what was removed and why. Returns the screening, that
    second file, and what was compared with. `split` is the candidates'."""
    source = PoolSource(path=candidates, columns=Columns(prompt=column, parent=parent))
    here = Location(
        candidates,
        split,
        path_option="give local files: trustmopd data decontaminate FILE",
        split_option="--split",
        column_option="--column, or --parent for parents",
    )
    others = [_comparison(each) for each in against]
    listing = out.with_name(f"{out.stem}.removed.json")
    _check_out(out, listing, {"candidates": here} | {f"--against {each.path}": each for _, each in others}, overwrite)
    rows = read_pool("candidates", source, here).rows
    compared = [(each.path, read_pool(f"--against {each.path}", other, each)) for other, each in others]
    comparison = [(path, place, row.text) for path, pool in compared for place, row in enumerate(pool.rows)]
    with named("candidates"):  # what cannot be written is reported before minutes are spent
        content = _table(here) if out.suffix == ".parquet" else list(_lines(here))
    screening = decontaminate(
        [row.text for row in rows],
        [text for _, _, text in comparison],
        parents=[row.parent for row in rows],
        ngram=ngram,
        threshold=threshold,
    )
    if isinstance(content, list):
        write_text(out, "".join(content[row] for row in screening.kept))
    else:
        kept = set(screening.kept)
        write_table(out, content.filter(pa.array([row in kept for row in range(len(rows))])))
    removed = []
    for index, rule, text, similarity, matched in screening.removed:
        path, row = comparison[matched][:2] if rule.startswith("cross") else (candidates, matched)
        what = {"row": index, "text": rows[index].text, "parent": rows[index].parent}
        why = {"rule": rule, "similarity": similarity, "matched": text, "matched_source": path, "matched_row": row}
        removed.append(what | why)
    sources = [{"source": path, "files": [*pool.files], "rows": len(pool.rows)} for path, pool in compared]
    write_json(listing, {"counts": screening.counts, "compared": sources, "removed": removed})
    return screening, listing, compared


def _comparison(against: str) -> tuple[PoolSource, Location]:
    """PATH or PATH:COLUMN; a path that exists is taken as it is, even with a colon in it. Every split is read: too much
    loses a row, which is reported, but too little lets a test row through."""
    path, colon, column = against.rpartition(":")
    if not colon or Path(against).exists():
        path, column = against, "prompt"
    location = Location(
        path,
        EVERY_SPLIT,
        path_option="give local files: --against FILE:COLUMN",
        column_option=f"--against {path}:COLUMN",
    )
    return PoolSource(path=path, columns=Columns(prompt=column)), location


def _check_out(out: Path, listing: Path, inputs: dict[str, Location], overwrite: bool) -> None:
    if out.suffix not in (".jsonl", ".parquet"):
        raise ValueError(f"--out {out} ends in {out.suffix!r}. Write .jsonl or .parquet.")
    read = set()
    for name, location in inputs.items():
        with named(name):
            read |= {file.resolve() for file in local_files(location)}
    for file in (out, listing):
        if file.resolve() in read:
            raise ValueError(f"{file} would be written, but is among the files that are read. Choose another --out.")
        if file.is_dir():
            raise FileExistsError(f"{file} is a folder. Choose another --out.")
        if file.exists() and not overwrite:
            raise FileExistsError(f"{file} exists. Choose another --out, or replace it with --overwrite.")


def _lines(location: Location) -> Iterator[str]:
    for where, record in read_source(location):
        try:
            line = json.dumps(record, ensure_ascii=False) + "\n"
            line.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{where} cannot be written as JSON: {error}. Fix this row, or write .parquet.") from None
        yield line


def _table(location: Location) -> pa.Table:
    """All rows, so that columns and their types do not depend on which are kept."""
    files, column = local_files(location), "?"
    try:
        if files and all(file.suffix == ".parquet" for file in files):  # Python has fewer types
            return pa.concat_tables([pq.read_table(file) for file in files], promote_options="default")
        records = [record for _, record in read_source(location)]
        arrays = {}
        for column in dict.fromkeys(column for record in records for column in record):
            arrays[column] = pa.array([record.get(column) for record in records])
        return pa.table(arrays)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise ValueError(
            f"the rows of {location.path} do not make one table (column {column!r}: {error}). Write .jsonl instead."
        ) from None
