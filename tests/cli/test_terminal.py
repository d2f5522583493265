"""A terminal shows names of files and models as they are, whatever brackets and colons they have."""

import json
import shlex
from pathlib import Path

import pytest
import small_runs
from command import run

from trustmopd.cli import common
from trustmopd.util.text_tables import text_table

NAME = "a [run] :smile: [/x]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose output and name have such names."""
    folder = tmp_path_factory.mktemp("terminal")
    rows = [{"id": str(i), "prompt": f"{i} + 1 =", "answer": i + 1} for i in range(3)]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    evaluation = {"benchmarks": [str(folder / "sums.jsonl")], "max_new_tokens": 4}
    training, output = {"max_steps": 1, "save_steps": 1, "record_allocation_every": 1}, str(folder / "out [bold]" / "x")
    models = small_runs.checkpoints(folder)
    small_runs.recipe(folder, models, training, name=NAME, evaluation=evaluation, output=output)
    return folder


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.console, "_width", 400)


def test_every_verb_prints_paths_and_names_as_they_are(folder: Path) -> None:
    recipe, output = folder / "recipe.yaml", folder / "out [bold]" / "x"
    for verb in ("train", "calibrate", "diagnose"):
        said = run(verb, recipe, "--dry-run")
        assert f"{NAME}: all checks passed" in said and str(output) in said
    assert str(output / "calibration.json") in run("calibrate", recipe)
    assert str(output / "diagnosis.json") in run("diagnose", recipe, "--rollouts", 2)
    said = run("train", recipe)
    assert f"{NAME}, seed 0" in said and str(output / "checkpoints" / "checkpoint-1") in said
    assert str(output / "metrics.jsonl") in said
    said = run("evaluate", recipe)
    assert NAME in said and str(output / "evaluation" / "scores.json") in said
    assert str(output / "evaluation" / "scores.json") in run("scores", output / "evaluation")
    assert str(output / "tables") in run("analyze", output)
    assert str(output / "report.html") in run("report", output)
    assert str(output / "soup") in run("merge", recipe, "--out", output / "soup", "--dry-run")
    assert str(output / "soup") in run("merge", recipe, "--out", output / "soup")


def test_an_interrupted_command_is_given_back_as_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        checkpoint = tmp_path / "a [run]" / "checkpoints" / "checkpoint-1"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("trustmopd.training.stages.train_recipe", interrupted)
    given = ["train", str(folder / "recipe.yaml"), f"output={tmp_path / 'a [run]'}", "seeds=[0]"]
    assert shlex.join(["trustmopd", *given, "--resume"]) in run(*given, code=130)


@pytest.mark.unit
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_narrow_terminal_cuts_no_name_and_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, width: int
) -> None:
    monkeypatch.setattr(common.console, "_width", width)
    header = ("", "sums", "math, mean", "overall", "recovery", "vs initial")
    row = (
        "parameter-average",
        "91.7 ± 0.0",
        "91.7 ± 0.1",
        "91.7 ± 0.2 [75.0, 100.0]",
        "99.1 ± 0.0",
        "+25.0 [0.5, 50.0]",
    )
    common.show_table(text_table(header, [row, ("initial", *"12345")]), "scores, %")
    said = capsys.readouterr().out
    pieces = ["sums", "mean", "overall", "recovery", "initial", "parameter-average", "91.7", "99.1", "+25.0", "± 0.1"]
    assert [piece for piece in (*pieces, "[75.0, 100.0]", "[0.5, 50.0]") if piece not in said] == []
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= max(width, 80)
