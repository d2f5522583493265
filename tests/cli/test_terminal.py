"""A terminal shows names of files and models as they are, whatever brackets and colons they have."""

import json
import shlex
from pathlib import Path

import pytest
import tiny
import yaml
from prompts import pools
from typer.testing import CliRunner

from trustmopd.cli import app, common
from trustmopd.util.text_tables import text_table

NAME = "a [run] :smile: [/x]"


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose output, name and evaluation set have such names, trained."""
    folder = tmp_path_factory.mktemp("terminal")
    base = tiny.model(0)
    tiny.prompts(12).to_json(folder / "prompts.jsonl")
    rows = [{"id": str(i), "prompt": f"{i} + 1 =", "answer": i + 1} for i in range(3)]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    names = ("math", "code")
    recipe = {
        "name": NAME,
        "student": tiny.save(base, folder / "student"),
        "teachers": {name: tiny.save(tiny.specialist(base, seed), folder / name) for seed, name in enumerate(names, 1)},
        "prompts": {"path": str(folder / "prompts.jsonl")},
        "training": {
            "max_steps": 1, "num_candidates": 16, "global_batch_size": 4, "max_completion_length": 6,
            "calibration_batches": 1, "record_allocation_every": 1, "bf16": False, "use_cpu": True,
        },
        "evaluation": {"benchmarks": [str(folder / "sums.jsonl")], "max_new_tokens": 4},
        "output": str(folder / "out [bold]" / "x"),
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
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


def test_a_prompt_set_is_built_and_shown_under_its_own_name(tmp_path: Path) -> None:
    for name in ("a [run]", "a :smile:"):
        assert f"Set:  {tmp_path / name}" in run("data", "build", pools.small(tmp_path, output=str(tmp_path / name)))
    title = " ".join(run("data", "show", tmp_path / name).split())  # it is as wide as its table
    assert f"100 prompts in {tmp_path / name}" in title


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
