"""A JSON Lines file that grows by whole lines: an interruption or a full disk costs only the line being written."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: A prompt's id, and which sample of it.
Key = tuple[str, int]
Fields = Mapping[str, type | tuple[type, ...]]

#: What every line of a journal of responses has, and one of graded responses.
SAMPLED: Fields = {"id": str, "sample": int, "prompt_hash": str, "response": str, "tokens": int, "truncated": bool}
GRADED: Fields = {**SAMPLED, "score": (int, float), "details": dict}


def read_lines(path: Path, fields: Fields) -> tuple[list[dict[str, Any]], int]:
    """The whole lines of a journal, and how many bytes they are: half a line of a killed run may follow."""
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    lines = []
    for number, text in enumerate(data[:whole].splitlines(), start=1):
        try:
            line = json.loads(text)
            if not isinstance(line, dict):
                raise ValueError("it is not a JSON object")
            if wrong := [name for name, kind in fields.items() if not isinstance(line.get(name), kind)]:
                raise ValueError(f"its {wrong[0]} is missing or wrong")
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number} cannot be read ({error}): the file was edited or damaged. Remove that line; "
                "`trustmopd evaluate` makes it again."
            ) from None
        lines.append(line)
    return lines, whole


def by_key(lines: Iterable[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    """Of two lines of one key, the later counts."""
    return {(line["id"], line["sample"]): line for line in lines}


class Journal:
    """`lines` holds what the file held when it was opened."""

    def __init__(self, path: Path, fields: Fields) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lines, whole = read_lines(path, fields)
        if path.exists() and path.stat().st_size > whole:
            os.truncate(path, whole)

    def append(self, line: dict[str, Any]) -> None:
        data = memoryview(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        with self.path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError as error:
                file.truncate(end)
                raise OSError(
                    f"cannot write {self.path} ({error.strerror}). Its {end} bytes so far are kept. Free some space "
                    "and run the same command again: it continues from there."
                ) from error
