"""The schemas that ship for editors: what the readers take fits them, a misspelt key does not, and they are as new."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_commands
import pytest
import yaml
from jsonschema import Draft7Validator

from trustmopd.recipe import load_recipe

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("schemas", ROOT / "docs" / "schemas.py")
assert _spec and _spec.loader
made = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(made)
RECIPES = [
    path
    for path in sorted((ROOT / "recipes").glob("*/*.yaml"))
    if {"extends", "student"} & (yaml.safe_load(path.read_text()) or {}).keys() and path.parent.name != "data"
]
GUIDES = [f"{page}.md" for page in ("guides/own-models", "guides/own-benchmarks", "recipes", "evaluation")]
RECIPE = {
    "name": "own",
    "student": "base",
    "teachers": {"math": "path", "code": {"adapter": "path", "reference": "student"}},
    "prompts": {"path": "prompts.jsonl"},
    "allocation": {"rule": "trust", "gamma": 7},
    "rollouts": {"engine": "vllm", "gpu_memory_utilization": 0.4},
    "training": {"learning_rate": 1e-6, "chat_template_kwargs": {"enable_thinking": False}},
    "evaluation": {"benchmarks": ["gsm8k", "questions.jsonl"]},
}


def slips(schema: str, value: Any) -> list[str]:
    path = made.FOLDER / schema
    return [error.message for error in Draft7Validator(json.loads(path.read_text())).iter_errors(value)]


def test_the_files_that_ship_are_those_that_make_schemas_writes() -> None:
    shipped = {path.name: json.loads(path.read_text()) for path in made.FOLDER.iterdir()}
    assert shipped == made.schemas(), "a field has changed: make schemas"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_recipe_that_ships_fits_as_it_is_and_resolved(path: Path) -> None:
    assert slips("recipe.json", yaml.safe_load(path.read_text())) == []
    assert slips("recipe.json", yaml.safe_load(load_recipe(path).to_yaml())) == []


def rows() -> Iterator[Any]:
    for page in GUIDES:
        for fence in page_commands.fences(page):
            for line in fence.body.splitlines() if fence.language == "json" else ():
                row = json.loads(line)
                kind = "prompts" if row.keys() <= {"id", "prompt", "domain", "capabilities"} else "questions"
                yield pytest.param(f"{kind}.json", row, id=line[:60])


@pytest.mark.parametrize(("schema", "row"), list(rows()))
def test_every_row_of_the_guides_fits_alone_and_in_a_list(schema: str, row: Any) -> None:
    assert slips(schema, row) == slips(schema, [row]) == []


def test_a_recipe_fits_as_the_reader_may_write_it() -> None:
    assert slips("recipe.json", RECIPE) == []
    assert slips("recipe.json", {"extends": "mine.yaml", "teachers": {"code": None}, "allocation": {"gamma": 9}}) == []


@pytest.mark.parametrize(
    "change",
    [
        {"studnet": "base"},
        {"teachers": {"math": {"modle": "path"}}},
        {"prompts": {"path": "prompts.jsonl", "domain_colum": "domain"}},
        {"allocation": {"rule": "trust", "gama": 7}},
        {"allocation": {"rule": "trsut"}},
        {"allocation": {"score": "displacment"}},
        {"rollouts": {"engine": "vllm", "gpu_memory": 0.4}},
        {"training": {"max_stesp": 10}},
        {"training": {"gamma": 7}},
        {"training": {"max_steps": "ten"}},
        {"evaluation": {"benchmark": []}},
        {"evaluation": {"engine": "vlm"}},
    ],
    ids=str,
)
def test_a_misspelt_key_or_choice_of_a_recipe_is_refused(change: dict[str, Any]) -> None:
    assert slips("recipe.json", RECIPE | change) != []


def test_a_recipe_without_a_student_that_extends_nothing_is_refused() -> None:
    assert slips("recipe.json", {key: value for key, value in RECIPE.items() if key != "student"}) != []


@pytest.mark.parametrize(
    ("schema", "row"),
    [
        ("prompts.json", {"promt": "1 + 1"}),
        ("prompts.json", {"prompt": [{"rol": "user", "content": "1 + 1"}]}),
        ("prompts.json", {"prompt": ""}),
        ("questions.json", {"id": "1", "prompt": "1 + 1", "anwser": 2}),
        ("questions.json", {"id": "1", "promt": "1 + 1", "answer": 2}),
    ],
)
def test_a_row_without_what_its_reader_needs_is_refused(schema: str, row: dict[str, Any]) -> None:
    assert slips(schema, row) != [] and slips(schema, [row]) != []
