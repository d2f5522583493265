"""The study of the guard: which runs it makes, what it changes in them, and what its table says."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from studies.small_world.guarded import guard_table, healthy, run_guarded, sick
from trustmopd.quickstart.shipped import checkpoint


def test_there_are_seven_sick_runs_and_five_healthy_ones_for_each_seed() -> None:
    assert len({cell.name for cell in sick()}) == 7
    assert len({cell.name for cell in healthy(5)}) == 25


def test_a_teacher_without_eos_differs_in_that_alone(tmp_path: Path) -> None:
    (cell,) = (cell for cell in sick() if cell.name == "sick/no-eos")
    path = cell.change(tmp_path)["teachers"]["math"]
    changed, own = (AutoModelForCausalLM.from_pretrained(each) for each in (path, checkpoint("math")))
    ids = torch.tensor([[5, 6, 7]])
    ours, theirs = changed(ids).logits, own(ids).logits
    eos = own.config.eos_token_id
    assert torch.equal(ours[..., eos], torch.zeros(1, 3))
    others = [token for token in range(theirs.shape[-1]) if token != eos]
    torch.testing.assert_close(ours[..., others], theirs[..., others])


def test_an_opposed_teacher_and_the_specialist_average_to_the_reference(tmp_path: Path) -> None:
    (cell,) = (cell for cell in sick() if cell.name == "sick/contradiction")
    teachers = cell.change(tmp_path)["teachers"]
    states = [AutoModelForCausalLM.from_pretrained(path).state_dict() for path in teachers.values()]
    reference = AutoModelForCausalLM.from_pretrained(checkpoint("reference")).state_dict()
    for name, weight in reference.items():
        torch.testing.assert_close((states[0][name] + states[1][name]) / 2, weight)


def test_the_table_replays_the_metrics_of_every_run(tmp_path: Path) -> None:
    for name, mass in (("sick/few", 0.9), ("healthy/trust", 0.999)):
        (tmp_path / name).mkdir(parents=True)
        lines = [{"step": step, "loss": 0.1, "candidates/student_mass": mass} for step in range(1, 13)]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = guard_table(tmp_path).rows
    assert [[*row[:4]] for row in rows] == [["healthy/trust", "12", "-", "-"], ["sick/few", "12", "mass", "10"]]


@pytest.mark.parametrize("steps", [12])
def test_a_sick_run_that_is_trained_is_seen(tmp_path: Path, steps: int) -> None:
    """Short: too few candidates, in twelve real steps."""
    from dataclasses import replace

    (cell,) = (cell for cell in sick() if cell.name == "sick/few-candidates")
    training = {**cell.training, "max_steps": steps, "global_batch_size": 16, "per_device_train_batch_size": 16}
    run_guarded(tmp_path, [replace(cell, training={**training, "calibration_batches": 2})])
    assert {row[2] for row in guard_table(tmp_path).rows} == {"mass"}
