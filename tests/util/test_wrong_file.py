"""A file given to the wrong verb: what it is and which verb takes it, in one message."""

from pathlib import Path

import pytest
from datasets import Dataset
from typer.testing import CliRunner

from trustmopd.cli import app

pytestmark = pytest.mark.unit

RECIPE = "name: r\nstudent: s\nteachers: {math: m}\nprompts: {path: p.jsonl}\n"
CONFIG = (
    "name: d\noutput: data/d\npools: {a: {path: a.jsonl}}\ncategories: {a: {pool: a, count: 1, capabilities: [a]}}\n"
)
VERBS = ["train", "calibrate", "diagnose", "merge", "evaluate"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(RECIPE)
    Path("data.yaml").write_text(CONFIG)
    Path("only.yaml").write_text("comparison: {a: {path: a.jsonl}}\n")
    Path("rows.jsonl").write_text('{"id": "1", "prompt": "a"}\n')
    Path("rows.csv").write_text("prompt\na\n")
    Dataset.from_dict({"prompt": ["a"]}).to_parquet("rows.parquet")
    return tmp_path


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output and result.output.count("\n") == 1
    return result.output


@pytest.mark.parametrize("config", ["data.yaml", "only.yaml"])
@pytest.mark.parametrize("verb", VERBS)
def test_the_config_of_a_prompt_set_is_sent_to_data_build(here: Path, verb: str, config: str) -> None:
    assert f"trustmopd data build {config}" in refusal(verb, config)


def test_a_recipe_is_sent_to_train(here: Path) -> None:
    assert "trustmopd train recipe.yaml" in refusal("data", "build", "recipe.yaml")


@pytest.mark.parametrize("file", ["rows.jsonl", "rows.csv", "rows.parquet"])
@pytest.mark.parametrize("verb", [*VERBS, "data build"])
def test_a_data_file_is_told_as_one_with_where_it_belongs(here: Path, verb: str, file: str) -> None:
    said = refusal(*verb.split(), file)
    where = f"--benchmarks {file}" if verb == "evaluate" else f"{{path: {file}}}"
    assert where in said
