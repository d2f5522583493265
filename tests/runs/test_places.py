"""Files that a run names are found from any working directory, and after a move."""

import os
from pathlib import Path
from typing import Any

import pytest

from trustmopd.runs import located, searched

pytestmark = pytest.mark.unit


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """What one folder held when it was trained in: a run, and prompts in a folder beside it."""
    (tmp_path / "home" / "study" / "runs" / "trust").mkdir(parents=True)
    (tmp_path / "home" / "study" / "prompts.jsonl").touch()
    return tmp_path / "home" / "study"


def manifest(run_dir: str | Path, directory: Path | None = None) -> dict[str, Any]:
    return {"config": {"run_dir": str(run_dir)}, **({"directory": str(directory)} if directory else {})}


@pytest.mark.parametrize("recorded", [True, False], ids=["directory recorded", "earlier release"])
@pytest.mark.parametrize("absolute", [True, False], ids=["absolute", "relative"])
def test_what_lay_beside_a_run_is_found_beside_it_after_a_move(study: Path, absolute: bool, recorded: bool) -> None:
    home = study.parent
    base = study if absolute else Path("study")
    known = manifest(base / "runs" / "trust", home if recorded else None)
    wanted = str(base / "prompts.jsonl")
    assert located(wanted, study / "runs" / "trust", known) == study / "prompts.jsonl"
    moved = study.rename(home / "renamed")
    assert located(wanted, moved / "runs" / "trust", known) == moved / "prompts.jsonl"


def test_a_run_that_was_moved_alone_finds_what_stayed(study: Path, tmp_path: Path) -> None:
    known = manifest("study/runs/trust", study.parent)
    run = (study / "runs" / "trust").rename(tmp_path / "trust")
    assert located("study/prompts.jsonl", run, known) == study / "prompts.jsonl"


def test_of_two_the_one_beside_the_run_is_taken(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "prompts.jsonl").touch()  # of another study, in the working directory
    monkeypatch.chdir(tmp_path)
    known = manifest("study/runs/trust")
    assert located("study/prompts.jsonl", study / "runs" / "trust", known) == study / "prompts.jsonl"


@pytest.mark.parametrize("known", [{}, {"config": {}}, manifest("study/runs/trust")])
def test_what_is_nowhere_is_not_found(study: Path, known: dict[str, Any]) -> None:
    for name in ("organisation/model", "./data/prompts", "n" * 300):
        assert located(name, study / "runs" / "trust", known) is None


def test_a_folder_that_is_closed_to_us_holds_nothing(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may look anywhere, so the refusal is made by the call beneath."""
    look = os.stat

    def closed(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).startswith(str(study.parent / "alice")):
            raise PermissionError(13, "Permission denied", path)
        return look(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", closed)
    known = manifest("runs/trust", study.parent / "alice")
    assert located("prompts.jsonl", study / "elsewhere", known) is None


def test_an_error_can_say_where_it_was_looked_for(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study)
    message = searched(manifest("study/runs/trust", study.parent))
    assert f"{study.parent}, " in message and f"{study}." in message
    assert f"{study.parent}, " not in searched(manifest("study/runs/trust"))
