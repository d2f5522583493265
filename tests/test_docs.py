"""The examples of README.md and docs/: recipes and configs load, prompts are prompts, commands and calls exist.

Code runs until it asks for a file that only the reader has; the arguments of every call are checked all the same."""

import ast
import inspect
import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import page_commands
import pytest
import torch
import yaml

from trustmopd.evaluation import Unavailable
from trustmopd.evaluation.benchmarks import load_benchmarks
from trustmopd.prompts.build_config import load_config
from trustmopd.prompts.prompt_set import check_prompts, load_prompts
from trustmopd.recipe import load_recipe
from trustmopd.recipe.yaml_layers import RecipeError
from trustmopd.training.prepare import config_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "studies").glob("*/*.md"))]
PROMPT_FIELDS = {"id", "prompt", "domain", "capabilities"}
#: What snippets take for granted.
GIVEN: dict[str, Callable[[], Any]] = {
    "teacher_logp": lambda: torch.randn(3, 5, 7).log_softmax(-1),
    "reference_logp": lambda: torch.randn(5, 7).log_softmax(-1),
    "student_logp": lambda: torch.randn(5, 7).log_softmax(-1),
    "mu": lambda: torch.ones(3),
    "candidates": lambda: ["one two three four five six", "another text of six words here"],
    "comparison": lambda: ["one two three four five six"],
}


def blocks(language: str) -> list[Any]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(rf"^```{language}(?: title=.*?)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            found.append(pytest.param(match[1], id=f"{page.relative_to(ROOT)}:{line}"))
    return found


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which the reader has the repository's recipes, and nothing else."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("block", blocks("yaml"))
def test_every_recipe_and_config_loads(block: str) -> None:
    fields = yaml.safe_load(block)
    if base := fields.get("extends"):
        Path(base).symlink_to(next((ROOT / "recipes").rglob(base)))
    Path("block.yaml").write_text(block)
    if "pools" in fields:
        load_config("block.yaml")
    else:
        recipe = load_recipe("block.yaml")
        config_of(recipe, recipe.seeds[0])


@pytest.mark.filterwarnings("ignore:.*prompts are plain text")
@pytest.mark.parametrize("block", blocks("json"))
def test_every_line_is_a_prompt_or_a_row_of_an_evaluation(block: str) -> None:
    rows = [json.loads(line) for line in block.splitlines()]
    if all(row.keys() <= PROMPT_FIELDS for row in rows):
        Path("rows.jsonl").write_text(block)
        check_prompts(prompts := load_prompts("rows.jsonl"))
        assert len(prompts) == len(rows) and len({type(prompt) for prompt in prompts["prompt"]}) == 1, "as TRL wants it"
        return
    for number, line in enumerate(block.splitlines()):  # they show one kind of row each
        Path(f"rows-{number}.jsonl").write_text(line)
        try:
            (loaded,) = load_benchmarks([f"rows-{number}.jsonl"], {})
        except Unavailable:
            continue  # its grader is not installed
        assert len(loaded.rows) == 1


@pytest.mark.parametrize("block", blocks("bash"))
def test_every_command_has_the_verbs_and_options_that_are_written(block: str) -> None:
    for words in page_commands.commands(block):
        if (arguments := page_commands.arguments(words)) is not None:
            page_commands.parsed(arguments)


@pytest.mark.parametrize("block", blocks("python"))
def test_all_code_runs_or_at_least_calls_things_as_they_are(block: str) -> None:
    tree = ast.parse(block)
    names: dict[str, Any] = {name: make() for name, make in GIVEN.items()}
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([statement], []), "imports", "exec"), names)
    for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        function = _value(call.func, names)
        if function is not None and not inspect.isbuiltin(function):
            keywords = {word.arg: ... for word in call.keywords if word.arg}
            inspect.signature(function).bind(*call.args, **keywords)
    with suppress(FileNotFoundError, Unavailable):
        try:
            exec(compile(tree, "block", "exec"), names)
        except RecipeError as error:
            assert "mine.yaml" in str(error), error  # the reader's own recipe


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for path, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/decisions.md"])
def test_every_path_of_the_tree_exists(page: str) -> None:
    text = (
        (ROOT / page).read_text(encoding="utf-8").split("\n## Studies (")[0]
    )  # their notes keep the names of their day
    paths = set(re.findall(r"`([\w./*-]+(?:\.py|/))`", text))
    assert len(paths) > 10
    assert [
        path for path in paths if not any(any(root.glob(path)) for root in (ROOT, ROOT / "src" / "trustmopd"))
    ] == []


def test_every_decision_is_in_the_index() -> None:
    index, _, decisions = (ROOT / "docs/decisions.md").read_text(encoding="utf-8").partition("\n## The tree\n")
    headings = re.findall("^### (.*)$", decisions.split("\n## Studies (")[0], re.MULTILINE)
    assert re.findall(r"^    - \[(.*)\]\(", index, re.MULTILINE) == headings


def _value(expression: ast.expr, names: dict[str, Any]) -> Any:
    """What a dotted name is, if it is imported or given."""
    if isinstance(expression, ast.Name):
        return names.get(expression.id)
    if isinstance(expression, ast.Attribute) and (owner := _value(expression.value, names)) is not None:
        return getattr(owner, expression.attr)
    return None
