"""What a resumed run must keep, what it may change, and what makes two runs two experiments, setting by setting."""

import pytest
from transformers import TrainerState

from trustmopd import TrustMOPDConfig
from trustmopd.training.run.resume_policy import LESSONS, STORED, TOLD, experiment_fields
from trustmopd.training.run.resuming import changes, check_same_settings
from trustmopd.util.files import write_json

pytestmark = pytest.mark.unit


@pytest.fixture
def config(tmp_path):
    return TrustMOPDConfig(output_dir=str(tmp_path), bf16=False, max_steps=4).to_dict()


@pytest.fixture
def checkpoint(config, tmp_path):
    """The manifest and state of a checkpoint with these settings, as far as they are compared."""
    models = {"student": {"source": "s"}, "reference": None, "teachers": {}}
    manifest = {"schema_version": 2, "run": "mine", "models": models, "prompts": {"fingerprint": "p"}}
    write_json(tmp_path / "checkpoint-2" / "manifest.json", manifest | {"config": config})
    state = TrainerState(global_step=2, epoch=1.0, max_steps=4, num_train_epochs=1, train_batch_size=4)
    state.save_to_json(str(tmp_path / "checkpoint-2" / "trainer_state.json"))
    return tmp_path / "checkpoint-2"


def test_the_same_settings_are_no_change(checkpoint, config):
    check_same_settings(checkpoint, config)
    assert changes(checkpoint, config) == {}


@pytest.mark.parametrize("field", LESSONS)
def test_what_the_student_is_taught_cannot_change(checkpoint, config, field):
    with pytest.raises(ValueError, match=f"{field}.*'another'.*Set them back"):
        check_same_settings(checkpoint, config | {field: "another"})


@pytest.mark.parametrize("field", [*STORED, *TOLD])
def test_how_it_learns_may_change_and_is_listed_with_both_values(checkpoint, config, field):
    value = 8 if field == "max_steps" else "another"
    check_same_settings(checkpoint, config | {field: value})
    assert changes(checkpoint, config | {field: value}) == {field: [config[field], value]}


def test_fewer_steps_than_there_are_are_refused(checkpoint, config):
    with pytest.raises(ValueError, match="max_steps = 1"):
        check_same_settings(checkpoint, config | {"max_steps": 1})


@pytest.mark.parametrize("field", ["save_steps", "teacher_placement", "logging_steps", "report_to", "seed"])
def test_housekeeping_and_seeds_are_no_other_experiment(field):
    assert field not in experiment_fields(has_dropout=False)
