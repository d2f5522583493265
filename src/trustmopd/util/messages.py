"""Parts of messages to users."""

from collections.abc import Sequence


def first_line(error: BaseException | str) -> str:
    """Why another library failed: the first line of its message, or the error's class if there is none."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def first_few(names: Sequence[str], shown: int = 5) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


class Interrupted(OSError):
    """Something that the run depends on is gone. Checkpoints that were saved are whole; the command line says how to
    continue from them."""
