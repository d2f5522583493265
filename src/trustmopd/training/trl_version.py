"""Whether the installed TRL is one that the trainer fits."""

import os
from importlib.metadata import version

from packaging.requirements import Requirement

NEEDED = "trl>=1.16,<1.17"  # as in pyproject.toml


class WrongTRL(ImportError, ValueError):
    """An ImportError in Python; the command line prints it as it prints any wrong value."""


def check_trl() -> None:
    """Called before TRL is imported: a wrong version fails there or in training, with errors that do not say why."""
    if os.environ.get("TRUSTMOPD_ANY_TRL"):  # to find out what a new TRL breaks
        return
    found = version("trl")
    if not Requirement(NEEDED).specifier.contains(found, prereleases=True):
        raise WrongTRL(
            f"TRL {found} is installed, but this trustmopd needs {NEEDED}: it subclasses TRL's trainer, whose "
            f"internals change between minor versions. Run: pip install '{NEEDED}'. A newer trustmopd may take a newer "
            "TRL (docs/compatibility.md)."
        )
