"""Decontaminating one file: its rows as they are, without those that repeat others."""

from collections.abc import Sequence
from pathlib import Path

from trustmopd.data.card import write_records
from trustmopd.data.config import Columns, Source
from trustmopd.data.corpora import read_pool
from trustmopd.data.decontaminate import Screening, decontaminate
from trustmopd.data.records import read_records
from trustmopd.files import write_json


def screen_file(
    candidates: str,
    against: Sequence[str],
    out: Path,
    *,
    column: str = "prompt",
    parent: str | None = None,
    split: str = "train",
    ngram: int = 5,
    threshold: float = 0.8,
    progress: bool = False,
) -> tuple[Screening, Path]:
    """Write the rows kept, unchanged, to `out`, and what was removed and why beside it."""
    if out.suffix not in (".jsonl", ".parquet"):
        raise ValueError(f"--out {out} ends in {out.suffix!r}; rows are written as .jsonl or .parquet.")
    source = Source(path=candidates, split=split, columns=Columns(prompt=column, parent=parent))
    rows = read_pool("candidates", source, progress=progress).rows
    comparison = [text for each in against for text in _texts(each, split, progress)]
    found = decontaminate(
        [row.text for row in rows],
        comparison,
        parents=[row.parent for row in rows],
        ngram=ngram,
        threshold=threshold,
        progress=progress,
    )
    kept = set(found.kept)
    records = (record for _, record in read_records(source, "candidates"))
    write_records(out, [record for place, record in enumerate(records) if place in kept])
    removed = [
        {"row": place, "text": rows[place].text, "parent": rows[place].parent}
        | {"rule": rule, "similarity": similarity, "matched": matched}
        for place, rule, matched, similarity in found.removed
    ]
    listing = write_json(out.with_name(f"{out.stem}.removed.json"), {"counts": found.counts, "removed": removed})
    return found, listing


def _texts(against: str, split: str, progress: bool) -> list[str]:
    """PATH or PATH:COLUMN. A path that is there is taken whole, should it have a colon itself."""
    path, colon, column = against.rpartition(":")
    if not colon or Path(against).exists():
        path, column = against, "prompt"
    source = Source(path=path, split=split, columns=Columns(prompt=column))
    return [row.text for row in read_pool(f"--against {path}", source, progress=progress).rows]
