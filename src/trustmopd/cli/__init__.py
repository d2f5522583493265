"""The command line: one verb per stage. It parses, calls, and prints what a person wants next."""

from typing import Annotated

import typer

from trustmopd import __version__
from trustmopd.cli import analyze, data, evaluate, init, merge, plan, quickstart, training
from trustmopd.cli.common import app, say
from trustmopd.cli.exit import leaving

__all__ = ["analyze", "app", "data", "evaluate", "init", "merge", "plan", "quickstart", "run", "training"]


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
