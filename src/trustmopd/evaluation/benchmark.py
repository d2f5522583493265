"""What a benchmark is: where its rows come from, how a row is asked, how a response is graded."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trustmopd.evaluation.graders.reasoning import strip_reasoning
from trustmopd.evaluation.questions import Row, Rows, read_generated, read_hub, read_local

Messages = list[dict[str, str]]
GENERATED = 1000  # prompts of a benchmark that makes its own, unless another number is asked for


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
    response without its reasoning. `ready` raises `Unavailable` where this machine cannot grade."""

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

    def load(self, path: str | Path | None = None, limit: int | None = None) -> Rows:
        """Its rows. `path` is a local file or folder to read instead; of a folder, files that name another split are
        left out. Rows that cannot be used are left out too, and named in the list's `malformed`."""
        path = path or self.path
        if path is not None:
            rows = read_local(Path(path), self.row, self.name, limit, self.split)
        elif self.generated is not None:
            rows = read_generated(self.generated(limit or GENERATED), self.row, self.name)
        else:
            assert self.hub is not None
            rows = read_hub(self.hub, self.config, self.split, self.row, self.name, limit)
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
