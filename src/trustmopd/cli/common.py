"""What all verbs share: the app, the console, and errors that a person can act on."""

import os
import re
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trustmopd.rollouts import EngineError
from trustmopd.util.messages import Interrupted, Preempted, first_line
from trustmopd.util.text_tables import TextTable

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
#: Where a cell of a table may be broken, the first that is enough.
_BREAKS = (None, " (?=\\[)", " (?=[\\[±])")
console = Console(highlight=False, quiet=os.environ.get("RANK", "0") != "0")


@contextmanager
def errors(
    again: str | None = None, kept: str | None = None, has_begun: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """What a user can fix is one message, not a traceback (TRUSTMOPD_TRACEBACK=1 shows it), and a warning
    is one line, without a line of our source code. After an interruption, print what was `kept` and the command
    that resumes (`again`), if `has_begun()`: if there is a checkpoint to continue from."""

    def afterwards() -> str:
        if not has_begun():
            return " No checkpoint was saved yet: the same command starts again from the beginning."
        saved = f" {kept[0].upper()}{kept[1:]} are kept." if kept else ""
        launched = " under the same launcher" if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        return f"{saved}{f' Continue{launched} with: {again}' if again else ''}"

    formatted = warnings.formatwarning
    warnings.formatwarning = _one_line
    try:
        yield
    except KeyboardInterrupt:
        say(f"\nInterrupted.{afterwards()}")
        raise typer.Exit(130) from None
    except Preempted:
        say(f"\nEnded by SIGTERM.{afterwards()}")
        raise typer.Exit(Preempted.status) from None
    except (ValueError, OSError, FloatingPointError, EngineError) as error:
        if os.environ.get("TRUSTMOPD_TRACEBACK"):
            raise
        later = afterwards() if isinstance(error, Interrupted) else ""
        print(f"error{_rank()}: {printable(str(error))}{later}", file=sys.stderr)
        raise typer.Exit(1) from None
    except RuntimeError as error:
        from trustmopd.training.run.across_ranks import lost_contact

        if os.environ.get("TRUSTMOPD_TRACEBACK") or not lost_contact(error):
            raise
        print(
            f"error{_rank()}: another process failed, was killed, or did not answer in time "
            f"({printable(first_line(error))}). Its own log has the reason.{afterwards()}",
            file=sys.stderr,
        )
        raise typer.Exit(1) from None
    finally:
        warnings.formatwarning = formatted


def _rank() -> str:
    return f" (rank {os.environ['RANK']} on {socket.gethostname()})" if os.environ.get("WORLD_SIZE", "1") != "1" else ""


def plain(text: object, style: str = "") -> Text:
    """As it is: no markup, so that out/[run] keeps its brackets, no :emoji:, no control characters."""
    return Text(printable(str(text)), style)


def say(text: str, *, lead: str = "") -> None:
    """Print one line without wrapping, so that paths can be copied. `lead` is bold."""
    console.print(plain(lead, "bold") + plain(text), soft_wrap=True)


def show_table(table: TextTable, title: str, note: str = "") -> None:
    """A narrow terminal must not cut a name or a figure: lines are broken in headers, then between a score, its
    [interval] and its ± instead; where even that does not fit, lines are longer than the terminal."""
    names, cells = [printable(name) for name in table.header], [[printable(cell) for cell in row] for row in table.rows]
    for breaks in _BREAKS:
        header = [name.replace(" ", "\n") if breaks else name for name in names]
        rows = [[row[0], *(re.sub(breaks, "\n", cell) if breaks else cell for cell in row[1:])] for row in cells]
        columns = zip(header, *rows, strict=True)
        widths = [  # columns of words may be broken at every space
            max(
                cell_len(line)
                for cell in column
                for line in (cell.split() if left and place else cell.split("\n")) or [""]
            )
            for place, (column, left) in enumerate(zip(columns, table.is_left, strict=True))
        ]
        narrowest = sum(widths) + 3 * len(widths) + 1
        if narrowest <= console.width:
            break
    shown = Table(
        title=plain(title), title_justify="left", caption=plain(note) if note else None, caption_justify="left"
    )
    for name, left, width in zip(header, table.is_left, widths, strict=True):
        shown.add_column(plain(name), justify="left" if left else "right", min_width=width)
    for row in rows:
        shown.add_row(*map(plain, row))
    console.print(shown, crop=False, width=max(narrowest, console.width))


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
