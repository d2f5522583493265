"""What must stay the same in a run that is resumed, told by a dry run and by the run before models are loaded."""

import json
import shutil
from pathlib import Path

import pytest
import small_runs
import tiny

from trustmopd import load_recipe, train_recipe
from trustmopd.training.dry_run import dry_run
from trustmopd.training.prepare import Prepared, prepare


@pytest.fixture(scope="module")
def two_steps(checkpoints, tmp_path_factory):
    """A run of two steps, with a checkpoint after the second."""
    folder = tmp_path_factory.mktemp("two")
    train_recipe(load_recipe(small_runs.recipe(folder, checkpoints), ["training.max_steps=2"]))
    return folder


@pytest.fixture
def folder(two_steps, tmp_path):
    """That run again, to be spoilt."""
    shutil.copy(two_steps / "prompts.jsonl", tmp_path)
    shutil.copytree(two_steps / "run", tmp_path / "run")
    return tmp_path


@pytest.fixture
def recipe(two_steps, folder):
    paths = [f"output={folder / 'run'}", f"prompts.path={folder / 'prompts.jsonl'}"]
    return lambda *overrides: load_recipe(two_steps / "recipe.yaml", [*paths, *overrides])


@pytest.fixture
def checkpoint(folder):
    return folder / "run" / "checkpoints" / "checkpoint-2"


@pytest.fixture
def refused(folder, monkeypatch):
    """Resuming is refused in a message with all of these facts, before any model is loaded, and nothing is written."""

    def check(recipe, *facts):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for resumed in (told, train_recipe):
            with monkeypatch.context() as context, pytest.raises((ValueError, OSError)) as refusal:
                context.setattr(Prepared, "trainer", lambda *_, **__: pytest.fail("models were loaded"))
                resumed(recipe, resume=True)
            assert [fact for fact in facts if str(fact) not in str(refusal.value)] == [], refusal.value
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

    return check


def told(recipe, **how):
    return dry_run(prepare(recipe), **how).topics


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_dry_run_names_the_checkpoint_and_does_not_calibrate(recipe, checkpoint):
    topics = told(recipe(), resume=True)
    assert topics["resumes from"] == f"{checkpoint} (step 2, max_steps 4 instead of 2)"
    assert topics["calibration"] == "the one that the run began with"


@pytest.mark.parametrize(
    "override",
    [
        *("allocation.gamma=3.0", "allocation.granularity=response", "training.temperature=0.9"),
        *("training.global_batch_size=4", "training.num_candidates=10", "training.optim=sgd"),
        *("training.max_completion_length=5", "training.max_steps=1"),
    ],
)
def test_other_lessons_or_fewer_steps_are_refused(refused, recipe, override):
    refused(recipe(override), override.rpartition(".")[2].partition("=")[0], "checkpoint-2")


def test_another_prompt_set_pool_or_kind_of_student_is_refused(refused, recipe, folder):
    refused(recipe("teachers.code=null"), "teacher 'code'", "checkpoint-2")
    refused(recipe("peft={target_modules: [q_proj]}"), "peft", "checkpoint-2")
    lines = (folder / "prompts.jsonl").read_text().splitlines(keepends=True)
    (folder / "prompts.jsonl").write_text("".join(lines[::-1]))
    refused(recipe(), "the prompt set", "checkpoint-2")


def test_a_teacher_that_moved_is_told(recipe, checkpoints, tmp_path):
    moved = shutil.copytree(checkpoints["math"], tmp_path / "moved")
    said = told(recipe(f"teachers.math={moved}"), resume=True)["resumes from"]
    assert f"teacher 'math' {moved} instead of {checkpoints['math']}" in said


@pytest.mark.parametrize(
    "file",
    ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "calibration.json"],
)
@pytest.mark.parametrize("kept", [0, 0.5], ids=["missing", "cut short"])
def test_a_checkpoint_with_a_file_missing_or_cut_short_is_refused(refused, recipe, checkpoint, file, kept):
    content = (checkpoint / file).read_bytes()
    (checkpoint / file).unlink()
    if kept:
        (checkpoint / file).write_bytes(content[: int(kept * len(content))])
    refused(recipe(), "checkpoint-2")


@pytest.mark.parametrize(
    ("file", "field"),
    [
        *(("manifest.json", field) for field in ("config", "models", "prompts")),
        ("calibration.json", "mu"),
        *(("trainer_state.json", field) for field in ("epoch", "log_history", "max_steps")),
    ],
)
def test_a_file_that_lacks_a_field_is_named_with_it(refused, recipe, checkpoint, file, field):
    stored = json.loads((checkpoint / file).read_text())
    del stored[field]
    (checkpoint / file).write_text(json.dumps(stored))
    refused(recipe(), f"checkpoint-2/{file}", field)


@pytest.mark.parametrize("broken", ["null", "{}", "[]", "{", {"global_step": "2"}, {"a new field": 1}])
def test_a_broken_trainer_state_is_refused_with_the_way_out(refused, recipe, checkpoint, broken):
    state = checkpoint / "trainer_state.json"
    edit(state, **broken) if isinstance(broken, dict) else state.write_text(broken)
    refused(recipe(), state, "another checkpoint")


def test_a_broken_calibration_is_repaired_as_the_message_says(refused, recipe, folder, checkpoint):
    calibration = checkpoint / "calibration.json"
    for broken in ('{"schema_version": 1, "mu"', '{"schema_version": 1}'):
        calibration.write_text(broken)
        refused(recipe(), calibration, f"Copy the run directory's calibration.json into {checkpoint}")
    shutil.copy(folder / "run" / "calibration.json", calibration)
    assert train_recipe(recipe(), resume=True)[0].step == 4


def test_another_engine_is_refused(refused, recipe, checkpoint):
    engine = json.loads((checkpoint / "manifest.json").read_text())["engine"]
    edit(checkpoint / "manifest.json", engine=engine | {"name": "FSDP2", "checkpoints": "sharded", "processes": 8})
    refused(recipe(), "FSDP2", "one process")


def test_the_references_of_teachers_are_compared(checkpoints, tmp_path):
    path = small_runs.recipe(tmp_path, checkpoints)
    other = tiny.save(tiny.specialist(tiny.model(0), 7), tmp_path / "other")
    own = f"teachers.code.reference={other}"
    train_recipe(load_recipe(path, ["training.max_steps=2", own]))
    copies = [shutil.copytree(each, tmp_path / name) for name, each in (("same", checkpoints["base"]), ("copy", other))]

    def resumed(*overrides):
        return told(load_recipe(path, overrides), resume=True)["resumes from"]

    resumed(own)
    for slip in ([], [f"teachers.code.reference={copies[0]}"]):
        with pytest.raises(ValueError, match="checkpoint-2.*reference of teacher 'code'"):
            resumed(*slip)
    with pytest.raises(ValueError, match="reference of teacher 'math'"):
        resumed(own, f"teachers.math.reference={other}")
    # Another path may be the same model, moved: the run compares the weights.
    assert f"the reference {copies[0]} instead of" in resumed(own, f"reference={copies[0]}")
    assert f"'code' {copies[1]} instead of" in resumed(f"teachers.code.reference={copies[1]}")
