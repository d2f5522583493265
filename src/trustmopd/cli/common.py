"""What all verbs share: the app, the console, and errors that a person can act on."""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console

app = typer.Typer(
    name="trustmopd",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Distil several RL specialists of one base model into one student, without labels.",
    epilog="A recipe is one YAML file; recipes/ has one per experiment of the paper. "
    "Any field can be changed on the command line: "
    "trustmopd train recipe.yaml training.max_steps=10",
)
console = Console(highlight=False, quiet=os.environ.get("RANK", "0") != "0")


@contextmanager
def errors(again: str | None = None, kept: str | None = "whole checkpoints") -> Iterator[None]:
    """What a user can mend is one message, not a traceback (TRUSTMOPD_TRACEBACK=1 shows it), and what she should know
    one line, not one of our source code too."""
    formatted = warnings.formatwarning
    warnings.formatwarning = _one_line
    try:
        yield
    except KeyboardInterrupt:
        state = f"Interrupted; {kept} are kept." if kept else "Interrupted."
        console.print(f"\n{state}{f' Continue with: {again}' if again else ''}", soft_wrap=True)
        raise typer.Exit(130) from None
    except (ValueError, OSError, FloatingPointError) as error:
        if os.environ.get("TRUSTMOPD_TRACEBACK"):
            raise
        print(f"error: {printable(str(error))}", file=sys.stderr)
        raise typer.Exit(1) from None
    finally:
        warnings.formatwarning = formatted


def printable(text: str) -> str:
    """Without what would command the terminal: names and values in files are other people's."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: ascii(found[0])[1:-1], text)


def local_copies(data: Sequence[str]) -> dict[str, str]:
    """`--data NAME=FILE`, repeated, as name → file."""
    pairs = [each.partition("=") for each in data]
    if bad := [each for each, (name, equals, path) in zip(data, pairs, strict=True) if not (name and equals and path)]:
        raise ValueError(f"--data {bad[0]}: not a benchmark and its file. Write it as ifeval=path/to/input_data.jsonl.")
    return {name: path for name, _, path in pairs}


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return f"warning: {printable(str(message))}\n"
