"""The study from the command line: what it refuses, and that every command written about it exists."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from studies.small_world.__main__ import app
from trustmopd.quickstart.quickstart import ELSEWHERE
from trustmopd.quickstart.shipped import SHIPPED

ROOT = Path(__file__).parents[3]
PROGRAM = "python -m studies.small_world "
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "studies" / "small_world").glob("*.md")]
LINES = [line for text in [ELSEWHERE, *(page.read_text() for page in PAGES)] for line in text.splitlines()]
COMMANDS = [match for line in LINES for match in re.findall(rf"{PROGRAM}([^`#|;)]*[^`#|;).\s])", line)]


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_every_command_that_is_written_has_the_options_it_names(command: str) -> None:
    result = CliRunner().invoke(app, [*shlex.split(command), "--help"])  # an unknown option is an error before the help
    assert result.exit_code == 0, result.output


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.output
    return result.output


def test_what_cannot_be_run_is_told_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "trsut" in refused("--only", "trsut", "--out", out)
    assert "likelihood" in refused("--two-bases", "--only", "likelihood", "--out", out)
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused("--out", tmp_path / "file" / "below")
    world = shutil.copytree(SHIPPED, tmp_path / "world")
    (world / "code" / "model.safetensors").write_bytes(b"other")
    expected = json.loads((world / "card.json").read_text())["stages"]["code"]["sha256"]["model.safetensors"]
    assert expected in refused("--world", world, "--out", out)
    assert "drfting" in refused("build", "--regime", "drfting", "--out", out)
    assert not out.exists()
