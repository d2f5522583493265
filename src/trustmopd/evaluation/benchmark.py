"""What a benchmark is: where its rows come from, how a row is asked, how a response is graded."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trustmopd.evaluation.graders.reasoning import strip_reasoning
from trustmopd.prompts.reading.formats import read_rows
from trustmopd.prompts.reading.sources import Location, hub_rows, is_of, local_files, named, split_of
from trustmopd.util.messages import first_few

Row = Mapping[str, Any]
Convert = Callable[[Mapping[str, Any], int], Row]
Messages = list[dict[str, str]]
GENERATED = 1000  # prompts of a benchmark that makes its own, unless another number is asked for


class Rows(list[Row]):
    """Rows with `id` and `prompt`; `malformed` lists those left out and why; `complaint` is the same in short.
    `files` are the local ones they are from."""

    files: list[Path]
    malformed: list[str]
    complaint: str


class Unavailable(OSError):
    """A grader's library, data or sandbox is not on this machine. Unlike any other error, this stops the grading."""


@dataclass(frozen=True)
class Grade:
    """`score` is 1 for passed and 0 for not. `details` has `extracted` (what was graded) and the grader's findings;
    `error` if it raised."""

    score: float
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Its rows are on the Hub (`hub`), in a file (`path`), or made (`generated`, given their number). `row` turns an
    upstream row and its place into ours: `id`, `prompt` (text or messages) and what `grader` reads. `grader` gets the
    response without its reasoning. `ready` raises `Unavailable` where this machine cannot grade. `graders` names what
    grades a user's own rows."""

    name: str
    domain: str
    row: Callable[[Mapping[str, Any], int], Row]
    grader: Callable[[Row, str], Grade]
    hub: str | None = None
    config: str | None = None
    split: str = "test"
    samples: int = 1
    system: str | None = None
    ready: Callable[[], None] = lambda: None
    path: Path | None = None
    generated: Callable[[int], Iterable[Mapping[str, Any]]] | None = None
    graders: str | None = None

    def load(self, path: str | Path | None = None, limit: int | None = None) -> Rows:
        """Its rows. `path` is a local file or folder to read instead; of a folder, files that name another split are
        left out. Rows that cannot be used are left out too, and named in the list's `malformed`."""
        path = path or self.path
        if path is not None:
            rows = read_local(Path(path), self.row, self.name, limit, self.split)
        elif self.generated is not None:
            made = self.generated(limit or GENERATED)
            rows = _convert(((f"prompt {i}", source) for i, source in enumerate(made)), self.row, self.name, None)
        else:
            assert self.hub is not None
            location = Location(
                self.hub, self.split, self.config, path_option=f"give a local copy: --data {self.name}=FILE"
            )
            with named(f"benchmark {self.name}"):
                rows = _convert(hub_rows(location), self.row, self.hub, limit)
        if count := len(rows.malformed):
            left_out = "1 malformed row is" if count == 1 else f"{count} malformed rows are"
            warnings.warn(f"benchmark {self.name}: {left_out} left out: {rows.complaint}", stacklevel=2)
        return rows

    def prompt(self, row: Row) -> Messages:
        """The conversation to put to the model."""
        if not isinstance(row["prompt"], str):
            return list(row["prompt"])
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": row["prompt"]}]

    def grade(self, row: Row, response: str) -> Grade:
        """Where the grader raises, the response has not passed, and `details["error"]` has the reason."""
        try:
            return self.grader(row, strip_reasoning(response))
        except Unavailable:
            raise
        except Exception as error:
            return Grade(0.0, {"extracted": None, "error": f"{type(error).__name__}: {error}"})


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


def text_of(source: Mapping[str, Any], *fields: str) -> str:
    """The first of `fields` that is there, which must hold text (or a number)."""
    for name in fields:
        value = source.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value
        if value is not None:
            raise ValueError(f"{name} = {value!r:.60} is not text")
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
    # Each reason once, with the first row that it holds for.
    reasons = [f"{first_few(places, 1)}: {reason}" for reason, places in refused.items()]
    rows.complaint = "; ".join([*reasons[:3], *(["…"] if len(reasons) > 3 else [])])
    return rows
