"""Rules of the field, where they could differ from the paper's own: the split of a batch, statistics of a step, a
resume, an initial student that is nobody's reference."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import replay
import tiny

from trustmopd import Teacher

EXTRAPOLATED = {"rule": "extrapolated", "factor": 1.5}
RULES: dict[str, dict[str, Any]] = {
    "aligned": {"allocation": {"rule": "expert_align", "top": 8}, "target": EXTRAPOLATED},
    "consensus": {"allocation": {"rule": "consensus", "nats": 0.2}},
    "shift": {"allocation": "uniform", "target": {"rule": "shift"}},
    "by_leader": {"emphasis": {"rule": "domain_normalised", "by": "leader"}},
    "by_label": {"allocation": "routed", "target": EXTRAPOLATED, "emphasis": {"rule": "equal_shares"}},
}
WAYS = {
    "batch2_accum4": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    "row_by_row": {"max_tokens_per_micro_batch": 1},
    "offloaded": {"teacher_placement": "offload"},
}


@pytest.mark.parametrize("rule", RULES)
def test_two_steps_have_the_same_gradients_however_they_are_split(rule, calibration, tmp_path):
    settings = {"calibration_path": calibration, "max_steps": 2, **RULES[rule]}
    whole = replay.run(tmp_path / "whole", **settings)
    assert len(whole.gradients) == 2
    for way, split in WAYS.items():
        found = replay.run(tmp_path / way, **settings, **split)
        for expected, gradient in zip(whole.gradients, found.gradients, strict=True):
            assert replay.difference(expected, gradient) < 1e-4, way


@pytest.mark.parametrize("rule", ["by_leader", "by_label"])
def test_a_resumed_run_weighs_groups_by_the_step_before(rule, calibration, tmp_path):
    settings = {"calibration_path": calibration, "max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    whole = replay.run(tmp_path, **settings, **RULES[rule])
    multipliers = [value for name, value in whole.logs[1].items() if name.startswith("emphasis/")]
    assert len(multipliers) > 1 and max(multipliers) - min(multipliers) > 0.01
    again = replay.trainer_of(tmp_path, **settings, **RULES[rule])
    gradients = replay.Gradients()
    again.add_callback(gradients)
    again.train(resume_from_checkpoint=str(Path(tmp_path) / "checkpoint-2"))
    (gradient,) = gradients.steps
    assert replay.difference(whole.gradients[2], gradient) < 1e-5


def test_a_sum_of_shifts_starts_from_the_student_even_if_no_teacher_grew_from_it(tmp_path):
    other = tiny.model(5, hidden=48, layers=3)
    teachers = {
        name: Teacher(model=tiny.specialist(other, seed), reference=other)
        for seed, name in enumerate(replay.TEACHERS, 1)
    }
    shift = {"allocation": "uniform", "target": {"rule": "shift"}}
    trainer = replay.trainer_of(tmp_path, teachers=teachers, **shift)
    assert trainer.pool.initial == "reference" and [*trainer.pool.members] == [*teachers, "reference", "reference:math"]
    common = {name: replace(teacher, reference=None) for name, teacher in teachers.items()}
    again = replay.trainer_of(tmp_path / "common", teachers=common, reference=other, **shift)
    assert again.pool.initial == "reference:"
    assert replay.difference(replay.trained(trainer).gradient, replay.trained(again).gradient) < 1e-5


def test_one_teachers_shift_from_the_student_is_plain_distillation(tmp_path):
    twin = replay.run(
        tmp_path / "twin",
        teachers={"math": Teacher(model=tiny.specialist(tiny.model(), 1))},
        allocation="uniform",
        target={"rule": "shift", "endpoint": True},
    )
    plain = replay.run(
        tmp_path / "plain", teachers={"math": Teacher(model=tiny.specialist(tiny.model(), 1))}, allocation="uniform"
    )
    assert replay.difference(plain.gradient, twin.gradient) < 1e-5
