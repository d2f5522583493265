"""`trustmopd init` writes a recipe for a user's own models that the dry run accepts as it is."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import tiny
import yaml
from jsonschema import Draft7Validator
from typer.testing import CliRunner

from trustmopd import load_recipe
from trustmopd.cli import app


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, base = tmp_path_factory.mktemp("models"), tiny.model(0)
    tiny.save(base, folder / "base")
    tiny.save(tiny.specialist(base, 1), folder / "math-1.5")
    tiny.save(tiny.specialist(base, 2), folder / "code")
    tiny.adapter(base, folder / "if", 3)
    return folder


@pytest.fixture(autouse=True)
def here(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader's folder: models, and prompts that have another name than the default."""
    monkeypatch.chdir(tmp_path)
    Path("models").symlink_to(models)
    tiny.prompts(10).to_json("mine.jsonl")


def cli(*arguments: str, code: int = 0) -> list[str]:
    """The lines that it prints."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result.output.strip().splitlines()


def test_the_recipe_passes_the_dry_run_that_the_last_line_names() -> None:
    lines = cli("init", "models/base", "models/math-1.5", "py=models/code", "models/if", "--prompts", "mine.jsonl")
    program, *next_command = shlex.split(lines[-1])
    assert (program, next_command) == ("trustmopd", ["train", "recipe.yaml", "--dry-run"])
    assert "all checks passed" in " ".join(cli(*next_command))
    recipe = load_recipe("recipe.yaml")
    assert (recipe.name, recipe.student, recipe.prompts.path) == ("base-trust", "./models/base", "mine.jsonl")
    sources = {name: (source.model, source.adapter) for name, source in recipe.teachers.items()}
    assert sources == {
        "math-1-5": ("./models/math-1.5", None),
        "py": ("./models/code", None),
        "if": (None, "./models/if"),
    }


def test_the_file_names_the_run_and_fits_the_schema_that_it_points_to() -> None:
    cli("init", "models/base", "models/code", "--out", "sub/trial.yaml")
    text = Path("sub/trial.yaml").read_text()
    address = re.match(r"# yaml-language-server: \$schema=(file://\S+)\n", text)
    assert address and load_recipe("sub/trial.yaml").run_directory(0) == Path("runs/trial")
    schema = json.loads(Path(unquote(urlsplit(address[1]).path)).read_text())
    assert list(Draft7Validator(schema).iter_errors(yaml.safe_load(text))) == []
    commented = {line.strip(" #") for line in text.splitlines() if re.match(r" *# \w+: \{", line)}
    assert len(commented) == 2
    filled = re.sub(r"^( *)# (?=\w+: \{)", r"\1", text, flags=re.MULTILINE)
    assert list(Draft7Validator(schema).iter_errors(yaml.safe_load(filled))) == [], (
        "what a user uncomments is right too"
    )


def test_without_prompts_the_recipe_says_what_to_fill_in() -> None:
    lines = cli("init", "models/base", "models/code")
    assert "prompts.jsonl" in " ".join(lines) and "FILL IN" in Path("recipe.yaml").read_text()
    tiny.prompts(64).to_json("prompts.jsonl")
    assert "all checks passed" in " ".join(cli(*shlex.split(lines[-1])[1:]))
    cli("init", "models/base", "models/code", "--overwrite")
    assert "FILL IN" not in Path("recipe.yaml").read_text()


def test_a_hub_id_stays_as_it_is_and_is_not_looked_up() -> None:
    cli("init", "org/base", "org/base-math", "--prompts", "org/prompts", "--out", "hub.yml")
    recipe = load_recipe("hub.yml")
    assert (recipe.student, recipe.teachers["base-math"].model) == ("org/base", "org/base-math")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["models/base", "models/cod"], ["models/cod", "org/name"]),
        (["models/if", "models/code"], ["models/if", "trustmopd merge"]),
        (["models/base", "models/code", "code=models/math-1.5"], ["one name", "math="]),
        (["models/base", "reference=models/code"], ["'reference'", "taken"]),
        (["models/base", "models/code", "--prompts", "none.jsonl"], ["none.jsonl", "does not exist"]),
        (["models/base", "models/code", "--out", "mine.jsonl", "--overwrite"], ["--out mine.jsonl", ".yaml"]),
        (["models/base", "models/code", "--out", "there.yaml"], ["there.yaml exists", "--overwrite"]),
    ],
)
def test_a_slip_is_named_and_nothing_is_written(arguments: list[str], facts: list[str]) -> None:
    Path("there.yaml").write_text("kept")
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    said = " ".join(cli("init", *arguments, code=1))
    assert all(fact in said for fact in facts)
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before


def test_it_needs_no_torch_and_its_help_has_examples() -> None:
    words = ["init", "models/base", "models/code", "--prompts", "mine.jsonl"]
    call = "from trustmopd.cli import app; app(sys.argv[1:], standalone_mode=False)"
    script = f"import sys; {call}; sys.exit('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script, *words], check=False)
    assert ended.returncode == 0 and Path("recipe.yaml").is_file()
    assert " ".join(cli("init", "--help")).partition("Examples")[2].count("trustmopd init ") == 2
