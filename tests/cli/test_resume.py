"""A run is continued at the command line: from its newest checkpoint that can be resumed from, or from one by name."""

import json
import shutil
from pathlib import Path

import pytest
import tiny
import yaml
from typer.testing import CliRunner

from trustmopd.cli import app

TRAINING = {
    "max_steps": 3,
    "learning_rate": 1e-3,
    "num_candidates": 16,
    "global_batch_size": 4,
    "max_completion_length": 6,
    "calibration_batches": 1,
    "save_steps": 1,
    "save_total_limit": 9,
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    base = tiny.model(0)
    tiny.prompts(24).to_json(folder / "prompts.jsonl")
    fields = {
        "name": "tiny",
        "student": tiny.save(base, folder / "student"),
        "teachers": {
            name: tiny.save(tiny.specialist(base, seed), folder / name) for seed, name in ((1, "math"), (2, "code"))
        },
        "prompts": {"path": str(folder / "prompts.jsonl")},
        "training": TRAINING,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def train(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["train", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return " ".join(result.output.replace("│", " ").split())  # a narrow table breaks lines


@pytest.fixture(scope="module")
def finished(recipe: Path) -> Path:
    output = recipe.parent / "finished"
    train(recipe, f"output={output}")
    return output


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """Three steps, with a checkpoint after each."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def losses(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.mark.parametrize("missing", ["optimizer.pt", "calibration.json", "manifest.json"])
def test_the_newest_checkpoint_that_can_be_resumed_from_is_taken_and_the_skipped_one_named(
    recipe: Path, run: Path, finished: Path, missing: str
) -> None:
    newest = run / "checkpoints" / "checkpoint-3"
    (newest / missing).unlink()
    for options in (["--dry-run"], []):
        with pytest.warns(UserWarning, match=f"checkpoint-2 .*checkpoint-3 .*no {missing[:9]}"):
            said = train(recipe, f"output={run}", "--resume", *options)
    assert f"Resuming from {newest.with_name('checkpoint-2')}, step 2" in said
    assert losses(run) == losses(finished)


@pytest.mark.parametrize("missing", ["optimizer.pt", "calibration.json"])
def test_where_no_checkpoint_can_be_resumed_from_each_has_its_reason(recipe: Path, run: Path, missing: str) -> None:
    shutil.rmtree(run / "checkpoints" / "checkpoint-1")
    for step in (2, 3):
        (run / "checkpoints" / f"checkpoint-{step}" / missing).unlink()
    said = train(recipe, f"output={run}", "--resume", code=1)
    assert all(f"checkpoint-{step} has no {missing[:9]}" in said for step in (2, 3))
    assert "calibration_path" not in said


def test_a_missing_calibration_is_copied_from_the_run_as_the_error_says(
    recipe: Path, run: Path, finished: Path
) -> None:
    checkpoint = run / "checkpoints" / "checkpoint-2"
    (checkpoint / "calibration.json").unlink()
    said = train(recipe, f"output={run}", "--resume", checkpoint, code=1)
    assert f"Copy the run directory's calibration.json into {checkpoint}" in said
    shutil.copy(run / "calibration.json", checkpoint)
    train(recipe, f"output={run}", "--resume", checkpoint)
    assert losses(run) == losses(finished)


@pytest.mark.parametrize("words", ["R --resume C", "R --resume=C", "R --resume C O", "--resume C R O", "--resume=C R"])
def test_a_checkpoint_is_named_before_or_after_the_recipe(recipe: Path, run: Path, words: str) -> None:
    parts = {"R": str(recipe), "C": str(run / "checkpoints" / "checkpoint-1"), "O": "seeds=[0]"}
    arguments = ["".join(parts.get(letter, letter) for letter in word) for word in words.split()]
    assert "(step 1)" in train(*arguments, f"output={run}", "--dry-run")


@pytest.mark.parametrize("words", ["R --resume O --dry-run", "--resume R O --dry-run", "R O --dry-run --resume"])
def test_resume_alone_takes_no_override_and_no_recipe_for_a_checkpoint(recipe: Path, run: Path, words: str) -> None:
    parts = {"R": str(recipe), "O": f"output={run}"}
    assert "(step 3)" in train(*(parts.get(word, word) for word in words.split()))


def test_going_back_to_a_checkpoint_repeats_the_later_steps(recipe: Path, run: Path, finished: Path) -> None:
    train(recipe, f"output={run}", "--resume", run / "checkpoints" / "checkpoint-1")
    assert losses(run) == losses(finished)
    aside = {path.name for path in (run / "checkpoints" / "_set-aside").iterdir()}
    assert aside == {"checkpoint-2.1", "checkpoint-3.1"}
    back = run / "checkpoints" / "_set-aside" / "checkpoint-2.1"
    assert f"Resuming from {back}, step 2." in train(recipe, f"output={run}", "--resume", back)


def test_of_several_seeds_the_one_that_wrote_the_checkpoint_goes_back_to_it(recipe: Path, tmp_path: Path) -> None:
    words = [recipe, f"output={tmp_path / 'runs'}", "seeds=[3, 4]", "training.max_steps=2"]
    train(*words)
    before = losses(tmp_path / "runs" / "seed-4")
    first = [tmp_path / "runs" / f"seed-{seed}" / "checkpoints" / "checkpoint-1" for seed in (3, 4)]
    said = train(*words, "--resume", first[1])
    assert f"Resuming from {first[0].with_name('checkpoint-2')}, step 2." in said
    assert f"Resuming from {first[1]}, step 1." in said
    assert losses(tmp_path / "runs" / "seed-4") == before
    said = train(*words[:2], "seeds=[4, 5]", "--resume", first[0], code=1)
    assert "seed 3" in said and "[4, 5]" in said


def test_a_checkpoint_that_is_not_there_is_named(recipe: Path, run: Path) -> None:
    for missing in ("checkpoint-7", run / "checkpoints" / "checkpoint-7"):
        assert str(missing) in train(recipe, f"output={run}", "--resume", missing, code=1)
