"""Exit for launched processes. At interpreter shutdown a thread of the process group may still be freeing tensors, and
aborts with SIGABRT: a run that has ended well would count as failed, after the launchers of other nodes have waited for
it. We exit with `os._exit`, after the other exit handlers."""

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
