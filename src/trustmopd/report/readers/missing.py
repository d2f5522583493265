"""What a report cannot show, and how to add it."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from trustmopd.runs import RunDirectory


@dataclass(frozen=True)
class Missing:
    """Something that a report would show and this run does not have."""

    what: str
    how: str = "It is left out."

    def __str__(self) -> str:
        return f"{self.what} {self.how}"


def as_commands(text: str, run: str | Path) -> str:
    """Advice with RECIPE replaced by the run's own recipe. Its commands work in the folder where the run was
    trained."""
    recipe = RunDirectory(Path(run)).recipe
    return text.replace("RECIPE", shlex.quote(str(recipe))) if os.path.isfile(recipe) else text
