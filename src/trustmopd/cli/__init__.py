"""The command line: one verb per stage. It parses, calls, and prints what a person wants next."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from trustmopd import __version__
from trustmopd.cli import analyze, data, evaluate, init, plan, quickstart, training
from trustmopd.cli.common import app, say

__all__ = ["analyze", "app", "data", "evaluate", "init", "plan", "quickstart", "run", "training"]


def _version(show: bool) -> None:
    if show:
        say(f"trustmopd {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run() -> None:
    """The command `trustmopd`."""
    leaving(app)


def leaving(run: Callable[[], None]) -> None:
    """Run a command. A process that a launcher started then leaves by `os._exit`, as soon as the exit handlers have run
    that libraries have registered meanwhile: at interpreter shutdown a thread of the process group may still be freeing
    tensors, and aborts with SIGABRT. A run that has ended well would count as failed."""
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
