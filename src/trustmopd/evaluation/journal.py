"""A JSON Lines file that grows by whole lines: an interruption or a full disk costs the line being written, no more."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Key = tuple[str, int]


def read_entries(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The whole lines of a journal, and how many bytes they are: behind them may stand half a line of a killed run."""
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    entries = []
    for number, line in enumerate(data[:whole].splitlines(), start=1):
        try:
            entries.append(json.loads(line))
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number} is not JSON ({error}): the file was edited or damaged. Remove that line; "
                "`trustmopd evaluate` makes it again."
            ) from None
    return entries, whole


def by_key(entries: Iterable[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    """By prompt and sample. Of two entries of one key, the later counts."""
    return {(entry["id"], entry["sample"]): entry for entry in entries}


class Journal:
    """`entries` holds what the file held when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.entries, whole = read_entries(path)
        self._file = path.open("ab", buffering=0)
        if os.fstat(self._file.fileno()).st_size > whole:
            self._file.truncate(whole)

    def append(self, entry: dict[str, Any]) -> None:
        line = memoryview(json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        end = os.fstat(self._file.fileno()).st_size
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            self._file.truncate(end)
            raise OSError(
                f"cannot write {self.path} ({error.strerror}); its {end} bytes are whole and kept. Make room and run "
                "the same command again: it goes on from there."
            ) from error

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
