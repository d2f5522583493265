"""What a user gets wrong at the command line, from end to end. Each refusal has its own test where it is made; here
are those that concern whole runs, and what a run finds in its folder."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_runs
import tiny
from command import run

import trustmopd


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return small_runs.checkpoints(tmp_path_factory.mktemp("models"))


@pytest.fixture
def recipe(models: dict[str, str], tmp_path: Path) -> Path:
    return small_runs.recipe(tmp_path, models)


@pytest.fixture
def run_dir(recipe: Path) -> Path:
    return recipe.parent / "run"


@pytest.fixture
def begun(recipe: Path) -> Path:
    """A run of two steps, with a checkpoint after the second."""
    run("train", recipe, "training.max_steps=2")
    return recipe


def test_teachers_of_several_bases_are_not_averaged(recipe: Path, models: dict[str, str], tmp_path: Path) -> None:
    other = tiny.save(tiny.model(5), tmp_path / "other")  # of the same shape
    for own in (other, "student"):
        for options in ((), ("--dry-run",)):
            said = run("merge", recipe, f"teachers.code.reference={own}", *options, code=1)
            assert "code" in said and "one base" in said
    assert not (tmp_path / "run").exists()
    assert "Would average 3" in run("merge", recipe, f"teachers.code.reference={models['base']}", "--dry-run")
    every = [f"teachers.{name}.reference={other}" for name in ("math", "code", "if")]
    assert "Would average 3" in run("merge", recipe, *every, "--dry-run")


@pytest.mark.parametrize("words", [["quickstart", "--out", "new"], ["report", "."]])
def test_without_the_extra_that_draws_a_verb_names_it_before_it_computes(words: list[str], tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['matplotlib'] = None; from trustmopd.cli import app; app(sys.argv[1:])"
    command = [sys.executable, "-c", hidden, *words]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1 and "trustmopd[viewer]" in ended.stderr and "Traceback" not in ended.stderr
    assert not list(tmp_path.iterdir())


# ---- Resuming


def test_a_refused_resume_leaves_the_recipe_of_the_run(begun: Path, run_dir: Path) -> None:
    before = (run_dir / "recipe.yaml").read_text()
    for options in (["--resume"], ["--resume", "--dry-run"]):
        said = run("train", begun, "allocation.gamma=3", *options, code=1)
        assert said.startswith("error: ") and "gamma" in said and "checkpoint-2" in said
    assert (run_dir / "recipe.yaml").read_text() == before


def test_resuming_what_never_began_and_what_has_ended_is_told(recipe: Path, run_dir: Path) -> None:
    said = run("train", recipe, "training.max_steps=2", "--resume")
    assert "no checkpoint" in said and str(run_dir) in said
    before = (run_dir / "recipe.yaml").read_text()
    again = run("train", recipe, "training.max_steps=2", "training.weight_decay=1", "--resume")
    assert "Nothing to train: step 2" in again and (run_dir / "recipe.yaml").read_text() == before


def test_a_folder_is_one_run_or_holds_one_for_each_seed(begun: Path, run_dir: Path, tmp_path: Path) -> None:
    for options in ((), ("--resume",), ("--dry-run",)):
        said = run("train", begun, "seeds=[1, 2]", *options, code=1)
        assert all(fact in said for fact in (str(run_dir), "seeds = [1, 2]", "output="))
    several = f"output={tmp_path / 'several'}"
    run("train", begun, "training.max_steps=1", "seeds=[1, 2]", several)
    run("train", begun, several, "seeds=[1]", "--resume", code=1)
    assert not (tmp_path / "several" / "checkpoints").exists()


def test_steps_that_were_trained_are_told_beside_a_later_checkpoint_of_another_run(begun: Path, run_dir: Path) -> None:
    later = Path(shutil.copytree(run_dir / "checkpoints" / "checkpoint-2", run_dir / "checkpoints" / "checkpoint-4"))
    stored = json.loads((later / "manifest.json").read_text())
    (later / "manifest.json").write_text(json.dumps(stored | {"run": "another"}))
    said = run("train", begun, "--resume")
    assert "Trained to step 4" in said and "Nothing to train" not in said
    manifest = run_dir / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"run": "a third"}))
    assert str(run_dir / "checkpoints") in run("train", begun, "--resume", code=1)


def test_a_trained_run_keeps_its_calibration(begun: Path, run_dir: Path) -> None:
    before = (run_dir / "calibration.json").read_text()
    run("calibrate", begun, "training.temperature=1.0", code=1)
    run("calibrate", begun, "--dry-run", code=1)
    assert "temperature" in run("diagnose", begun, "training.temperature=1.0", "--rollouts", "8", code=1)
    run("diagnose", begun, "--rollouts", "8")
    assert (run_dir / "calibration.json").read_text() == before


# ---- What is in the folder, or never will be


def test_a_student_that_is_not_saved_is_told_and_not_promised(recipe: Path, run_dir: Path) -> None:
    with pytest.warns(UserWarning, match="save_strategy"):
        said = run("train", recipe, "training.save_strategy=no", "training.max_steps=1")
    assert "checkpoint-1" not in said and "save_strategy" in said
    assert not list((run_dir / "checkpoints").glob("checkpoint-*"))


def test_a_new_run_sets_aside_the_checkpoints_of_an_earlier_one(begun: Path, run_dir: Path) -> None:
    run("train", begun, code=1)  # the command line asks first
    (run_dir / "checkpoints" / "checkpoint-2" / "manifest.json").unlink()  # as a run that was killed while saving
    shutil.copytree(run_dir / "checkpoints" / "checkpoint-2", run_dir / "checkpoints" / "checkpoint-90")
    run("train", begun)
    assert {path.name for path in (run_dir / "checkpoints").glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    aside = {path.name for path in (run_dir / "checkpoints" / "_set-aside").iterdir()}
    assert aside == {"checkpoint-2.1", "checkpoint-90.1"}


@pytest.mark.parametrize("broken", ["", '{"schema_version": 0}', '{"schema_version": 1, "dev', None])
def test_a_broken_cost_file_is_set_aside_and_does_not_stop_a_resumed_run(
    begun: Path, run_dir: Path, caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    cost = run_dir / "cost.json"
    cost.unlink()
    cost.mkdir() if broken is None else cost.write_text(broken)
    run("train", begun, "--resume")
    assert json.loads(cost.read_text())["training"]["steps"] == 4
    aside = run_dir / "cost.json.broken"
    assert aside.is_dir() if broken is None else aside.read_text() == broken
    assert sum(str(cost) in record.getMessage() for record in caplog.records) == 1


def test_a_second_process_does_not_write_into_a_run_that_is_training(recipe: Path, run_dir: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(trustmopd.__file__).parents[1])}
    settings = ["training.max_steps=400", "training.save_strategy=no"]
    command = [sys.executable, "-m", "trustmopd", "train", str(recipe), *settings]
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    try:
        while not (run_dir / "metrics.jsonl").is_file():
            assert first.poll() is None, first.stderr and first.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.05)
        run("train", recipe, code=1)
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()
