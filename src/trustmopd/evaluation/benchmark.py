"""What a benchmark is: where its rows come from, how a row is asked, how a response is graded."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trustmopd.evaluation.reasoning import strip_reasoning
from trustmopd.evaluation.rows import Row, Rows, read_hub, read_local

Messages = list[dict[str, str]]


class Unavailable(OSError):
    """A grader's library, data or sandbox is not on this machine. Unlike any other error, this stops the grading."""


@dataclass(frozen=True)
class Grade:
    """`score` is 1 for passed and 0 for not. `details` has `extracted` (what was graded) and what the grader says;
    `error` if it raised."""

    score: float
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """`row` turns an upstream row (and its number) into ours: `id`, `prompt` (text or messages) and what `grader`
    reads. `grader` gets the response without its reasoning. `ready` raises `Unavailable` where it cannot grade."""

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

    def load(self, path: str | Path | None = None, limit: int | None = None) -> Rows:
        """Its rows, from the Hub or from a local file or folder; of a folder, what names another split is left out.
        Rows that cannot be used are left out too, and named in the list's `malformed`."""
        path = path or self.path
        if path is not None:
            rows = read_local(Path(path), self.row, self.name, limit, self.split)
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
        """A grader that raises has not passed the response, and says why in `details["error"]`."""
        try:
            return self.grader(row, strip_reasoning(response))
        except Unavailable:
            raise
        except Exception as error:
            return Grade(0.0, {"extracted": None, "error": f"{type(error).__name__}: {error}"})
