"""The command line, in this process."""

from typer.testing import CliRunner

from trustmopd.cli import app


def run(*words: object, code: int = 0) -> str:
    """What a command that ends with this status says, in one line, on a wide terminal."""
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())
