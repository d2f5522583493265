"""Work that may hang where Python cannot interrupt it: in a kernel, in a collective call."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Ends the process, with status 1 and `message`, if the block takes longer. An exception would have to
    wait for the call that hangs. Files are written completely or not at all, so nothing on disk is damaged."""

    def give_up() -> None:
        print(f"\n{message}", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
