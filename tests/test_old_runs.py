"""Runs and recipes of earlier versions: they are read, scored, continued and compared as their own version did."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trustmopd import load_recipe
from trustmopd.cli import app
from trustmopd.report.readers.run import find_runs
from trustmopd.report.statistics.comparison import compare
from trustmopd.report.statistics.summary import summarise_run

OLD = Path(__file__).parent / "fixtures" / "run-0.1.0"
ROWS = ("initial", "teacher-math", "teacher-code", "old")
REL = 1e-4
SCORED = [part for row in ROWS for part in ("--only", row)]


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which version 0.1.0 trained, on another machine and at another place."""
    folder = shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(folder)
    return folder


def cli(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def logged(metrics: Path, name: str = "loss") -> list[float]:
    """A metric of every step. CPUs differ: compare them with REL."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def scores(folder: Path) -> dict[str, dict[str, Any]]:
    stored = json.loads((folder / "run" / "evaluation" / "scores.json").read_text())
    return {row: {"overall": stored[row]["overall"], "recovery": stored[row]["recovery"]} for row in ROWS}


def test_report_of_an_old_run_has_its_tokens_and_lacks_nothing_but_its_last_steps(old: Path) -> None:
    cli("analyze", "run")
    cli("report", "run")
    page = (old / "run" / "report.html").read_text(encoding="utf-8")
    assert 'id="viewer-data"' in page and "Token by token" in page
    found = json.loads((old / "run" / "analysis.json").read_text())
    assert (found["steps"], found["max_steps"], found["calibrated"]) == (2, 4, True)
    assert found["rollouts"] == 8 and found["own_scores"]["overall"] == pytest.approx(1 / 3)
    assert found["cost"]["calibration"] and found["diagnosis"]["domains"]
    (gap,) = found["missing"]
    assert "step 2 of 4" in gap["what"] and "--resume" in gap["how"]


def test_evaluate_keeps_what_an_old_run_answered_and_answers_as_it_did(old: Path) -> None:
    expected = scores(old)
    answers = {path: path.read_bytes() for path in (old / "run" / "evaluation").rglob("*.responses.jsonl")}
    cli("evaluate", "recipe.yaml", *SCORED)
    assert scores(old) == expected and len(answers) == len(ROWS)
    assert all(path.read_bytes() == content for path, content in answers.items())
    shutil.rmtree(old / "run" / "evaluation")
    cli("evaluate", "recipe.yaml", *SCORED)
    assert scores(old) == expected


def test_resumed_old_run_ends_as_it_would_have_and_a_new_seed_belongs_to_its_experiment(old: Path) -> None:
    assert "checkpoint-2 (step 2)" in cli("train", "recipe.yaml", "--resume", "--dry-run")  # and nothing has changed
    cli("train", "recipe.yaml", "--resume")
    expected = logged(OLD / "uninterrupted.jsonl")
    assert logged(old / "run" / "metrics.jsonl") == pytest.approx(expected, rel=REL) and len(expected) == 4
    cli("train", "recipe.yaml", "seeds=[1]", "output=new")
    (setting,) = compare(summarise_run(run) for run in find_runs(["run", "new"])).settings
    assert {method: sorted(seeds) for method, seeds in setting.methods.items()} == {"trust": [0, 1]}


def test_calibration_of_an_old_run_is_used_by_a_new_one(old: Path) -> None:
    """With each mu doubled, so that one which is measured again would show: scores are halved, weights are not."""
    file = old / "run" / "calibration.json"
    calibration = json.loads(file.read_text())
    calibration["mu"] = {name: 2 * mu for name, mu in calibration["mu"].items()}
    file.write_text(json.dumps(calibration))
    cli("train", "recipe.yaml", "output=new", "calibration=run/calibration.json", "training.max_steps=1")
    for name, factor in {"loss": 1, "weight/math": 1, "score/math": 0.5, "score/code": 0.5}.items():
        expected = factor * logged(OLD / "uninterrupted.jsonl", name)[0]
        assert logged(old / "new" / "metrics.jsonl", name) == pytest.approx([expected], rel=REL), name


def _check_kept(was: Any, now: Any, place: str = "recipe") -> None:
    """Every field that there was has the value that it had."""
    if not isinstance(was, Mapping):
        assert now == was, place
        return
    for name, value in was.items():
        _check_kept(value, now[name], f"{place}.{name}")


def test_old_recipe_with_every_section_means_what_it_meant() -> None:
    resolved = yaml.safe_load((OLD / "every-section.resolved.yaml").read_text())
    _check_kept(resolved, yaml.safe_load(load_recipe(OLD / "every-section.yaml").to_yaml()))
