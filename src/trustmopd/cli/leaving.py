"""The way out of a process of several. At the end of the interpreter, a thread of the process group that still frees
tensors finds no interpreter, and aborts the process with SIGABRT: a run that has ended well would count as failed, once
the launchers of other nodes have waited for it. So such a process skips the end of the interpreter."""

import atexit
import os
import sys
from collections.abc import Callable

_status: list[int] = []


def leaving(run: Callable[[], None]) -> None:
    """Run a command. A process of several then leaves with its exit status as soon as the exit handlers have run."""
    try:
        run()
    except SystemExit as end:
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            _status[:] = [end.code if isinstance(end.code, int) else int(end.code is not None)]
        raise


@atexit.register  # before trackers and other libraries register theirs, and so after them
def _leave() -> None:
    if _status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_status[-1])
