"""The way out of a process that a launcher started. At the end of the interpreter, a thread of the process group that
still frees tensors finds no interpreter, and aborts the process with SIGABRT: a run that has ended well would count as
failed, once the launchers of other nodes have waited for it. So such a process skips the end of the interpreter."""

import atexit
import os
import sys
from collections.abc import Callable


def leaving(run: Callable[[], None]) -> None:
    """Run a command. A process that a launcher started then leaves with its exit status, as soon as the exit handlers
    have run that libraries have registered meanwhile."""
    status: list[int] = []

    def leave() -> None:
        if status:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status[0])

    atexit.register(leave)  # the first to be registered runs last
    try:
        run()
    except SystemExit as end:
        if "WORLD_SIZE" in os.environ:
            status.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
