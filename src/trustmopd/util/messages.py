"""Parts of messages to users."""

import difflib
import signal
from collections.abc import Iterable, Sequence


def first_line(error: BaseException | str) -> str:
    """Why another library failed: the first line of its message, or the error's class if there is none."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def first_few(names: Sequence[str], shown: int = 5) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def choose_from(known: Iterable[str], name: object) -> str:
    """The remedy for a name that is unknown: the one that was probably meant, and all there are."""
    known = list(known)
    close = difflib.get_close_matches(str(name).lower(), known, n=1)
    return f"{f'Did you mean {close[0]}? ' if close else ''}Choose from {', '.join(known)}"


class Preempted(SystemExit):
    """SIGTERM asked the run to end, and its last step is saved. A script that does not catch this ends with the status
    that shells give to SIGTERM."""

    status = 128 + signal.SIGTERM

    def __init__(self) -> None:
        super().__init__(self.status)


class Interrupted(OSError):
    """Something that the run depends on is gone. Checkpoints that were saved are whole; the command line says how to
    continue from them."""
