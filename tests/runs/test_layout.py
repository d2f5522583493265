"""The names of a run's files have one owner."""

import ast
from pathlib import Path

import pytest

import trustmopd
from trustmopd.runs import layout

pytestmark = pytest.mark.unit

SOURCE = Path(trustmopd.__file__).parent
FILES = [
    name for name in vars(layout).values() if isinstance(name, str) and name.endswith((".json", ".jsonl", ".html"))
]


@pytest.fixture(scope="module")
def literals() -> dict[str, set[str]]:
    """Every text constant of the package that is no docstring, and the modules that have it."""
    found: dict[str, set[str]] = {}
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.setdefault(node.value, set()).add(str(file.relative_to(SOURCE)))
    return found


@pytest.mark.parametrize("name", [*FILES, layout.CHECKPOINT, layout.SEED, layout.SET_ASIDE])
def test_a_file_of_a_run_is_named_in_one_module(name: str, literals: dict[str, set[str]]) -> None:
    assert literals[name] == {"runs/layout.py"}
