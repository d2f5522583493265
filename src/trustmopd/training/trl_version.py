"""Whether the installed TRL is one that the trainer fits."""

import os
from importlib.metadata import version

#: As in pyproject.toml: from the first, up to but without the second.
OLDEST, TOO_NEW = (1, 16), (1, 17)


class WrongTRL(ImportError, ValueError):
    """An ImportError in Python; the command line prints it as it prints any wrong value."""


def check_trl() -> None:
    """Called before TRL is imported: a wrong version fails there or in training, with errors that do not say why."""
    if os.environ.get("TRUSTMOPD_ANY_TRL"):  # to find out what a new TRL breaks
        return
    found = version("trl")
    major, minor = found.split(".")[:2]
    if not OLDEST <= (int(major), int(minor)) < TOO_NEW:
        span = f"trl>={_text(OLDEST)},<{_text(TOO_NEW)}"
        raise WrongTRL(
            f"TRL {found} is installed, but this trustmopd needs {span}: it subclasses TRL's trainer, whose internals "
            f"change between minor versions. Run: pip install '{span}'. A newer trustmopd may take a newer TRL "
            "(docs/compatibility.md)."
        )


def _text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
