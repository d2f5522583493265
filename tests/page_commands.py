"""The commands that a page of the documentation shows.

A page marks what cannot run everywhere, before its fence: `<!-- needs a GPU -->`."""

import itertools
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

from trustmopd.cli import app

DOCS = Path(__file__).parents[1] / "docs"
_FENCE = re.compile(r'^(?:<!-- needs (.*?) -->\n+)?```(\w+)(?: title="(.*?)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
#: In a sentence: a whole command, for the reader's recipe.
_INLINE = re.compile(r"`([^`\n]*trustmopd [^`\n]* RECIPE\b[^`\n]*)`")
_INDENTED = re.compile(r"^ {4}(?:trustmopd|python|torchrun|accelerate|sbatch|pip|ray|vllm)\b.*", re.MULTILINE)


class Fence(NamedTuple):
    needs: str
    language: str
    title: str
    body: str


def fences(page: str) -> list[Fence]:
    """The fences of a page of docs/. Commands in an indented block would be missed."""
    text = (DOCS / page).read_text(encoding="utf-8")
    assert _INDENTED.findall(text) == [], f"{page}: put commands between ```bash and ```"
    inline = [Fence("a recipe", "bash", "", f"{command}\n") for command in _INLINE.findall(text)]
    return [Fence(*match) for match in _FENCE.findall(text)] + inline


def commands(body: str) -> Iterator[list[str]]:
    """The words of each command, without comments and the variables set for it."""
    for line in body.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words := list(itertools.dropwhile(lambda word: re.match("[A-Z_]+=", word), words)):
            yield words


def arguments(words: list[str]) -> list[str] | None:
    """What trustmopd is given, without its launcher, whose own parser reads the launcher's options. None if another
    program is called."""
    match words:
        case ["trustmopd", *rest] | ["python", "-m", "trustmopd", *rest]:
            return rest
        case ["torchrun", *rest]:
            return _launched(get_args_parser(), rest)
        case ["accelerate", "launch", *rest]:
            return _launched(launch_command_parser(), rest)
        case ["sbatch", "--nodes", _, script, *rest]:
            assert Path(script).is_file() and 'trustmopd train "$@"' in Path(script).read_text(), script
            return ["train", *rest]
    assert not {"-m", "trustmopd"} <= set(words), f"an unknown launcher: {shlex.join(words)}"
    return None


def _launched(parser: ArgumentParser, words: list[str]) -> list[str]:
    given = parser.parse_args(words)
    config = getattr(given, "config_file", None)
    assert config is None or Path(config).is_file(), f"{config} does not exist"
    assert given.module and given.training_script == "trustmopd", shlex.join(words)
    return given.training_script_args


def parsed(words: list[str]) -> dict[str, Any]:
    """The parameters of a verb. Raises where a verb or an option does not exist."""
    command: Any = typer.main.get_command(app)
    context = None
    while hasattr(command, "commands"):
        context = command.make_context(words[0], [], parent=context, resilient_parsing=True)
        assert words[0] in command.commands, f"trustmopd has no verb {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    return command.make_context(command.name, list(words), parent=context).params
