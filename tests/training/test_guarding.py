"""The guard in a real run: a warning in log and metrics; a stop with a whole checkpoint, and a resume after it."""

import json
import logging
from types import SimpleNamespace

import pytest
import small_runs
from transformers import TrainerControl, TrainerState
from typer.testing import CliRunner

from trustmopd.cli import app
from trustmopd.runs import RunDirectory, whole_checkpoints
from trustmopd.training.run.guarding import Guarding
from trustmopd.util.messages import Interrupted

#: Two candidates hold little of a random model's probability: `mass` speaks after ten steps.
SICK = {"num_candidates": 2, "max_steps": 12, "save_steps": 50, "logging_steps": 1}


def test_a_warning_is_in_the_log_and_in_the_line_of_its_step(tmp_path, caplog):
    trainer = small_runs.trainer(tmp_path, **SICK)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    steps = small_runs.steps_of(tmp_path)
    said = [line["step"] for line in steps if "guard/mass" in line]
    assert said == [10] and steps[9]["guard/mass"] == steps[9]["candidates/student_mass"]
    assert trainer.state.global_step == 12
    assert sum("#mass" in record.message for record in caplog.records) == 1


def test_stop_saves_the_step_and_the_printed_command_goes_on(tmp_path):
    models = small_runs.checkpoints(tmp_path / "models")
    recipe = small_runs.recipe(tmp_path, models, {**SICK, "guard": {"mass": "stop"}})
    stopped = CliRunner().invoke(app, ["train", str(recipe)])
    run = RunDirectory(tmp_path / "run")
    assert stopped.exit_code == 1
    assert [path.name for path in whole_checkpoints(run.checkpoints)] == ["checkpoint-10"]
    assert "--resume" in stopped.stderr and "#mass" in stopped.stderr
    resumed = CliRunner().invoke(app, ["train", str(recipe), "--resume"])
    assert resumed.exit_code == 0, resumed.output
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [*range(1, 13)]
    assert sum("guard/mass" in line for line in lines) == 1


@pytest.mark.unit
def test_a_stop_that_was_not_asked_for_raises_nothing():
    guarding = Guarding("warn")
    guarding.check()
    guarding.stopped = next(iter(Guarding("stop").guard.read([{"step": s, "loss": 10.0**s} for s in range(20)])))
    with pytest.raises(Interrupted):
        guarding.check()


@pytest.mark.unit
@pytest.mark.parametrize("strategy", ["steps", "no"])
def test_a_stop_says_whether_its_step_is_saved(strategy):
    guarding, control, saves = Guarding("stop"), TrainerControl(), strategy != "no"
    for step in range(20):
        state = TrainerState(global_step=step, is_world_process_zero=True)
        guarding.on_log(SimpleNamespace(save_strategy=strategy), state, control, logs={"loss": 10.0**step})
    assert (control.should_training_stop, control.should_save) == (True, saves)
    with pytest.raises(Interrupted) as error:
        guarding.check()
    assert ("save_strategy" not in str(error.value)) is saves
