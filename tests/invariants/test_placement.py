"""Offloaded teachers are copied in for a pass and dropped after it: nothing can be lost on the way."""

import pytest
import replay
import torch

from trustmopd.policies import fingerprint


@pytest.fixture
def offloaded(tmp_path) -> replay.ReplayedTrainer:
    return replay.trainer_of(tmp_path, teacher_placement="offload", max_steps=3)


def models_of(trainer: replay.ReplayedTrainer) -> dict[str, torch.nn.Module]:
    return {name: member.host.model for name, member in trainer.pool.members.items()}


def test_offloaded_teachers_are_the_same_bit_for_bit_after_several_passes(offloaded):
    models = models_of(offloaded)
    before = {name: (fingerprint(model), [p.data_ptr() for p in model.parameters()]) for name, model in models.items()}
    replay.trained(offloaded)
    assert {*before} == {*replay.TEACHERS, "reference"}
    for name, model in models.items():
        assert (fingerprint(model), [p.data_ptr() for p in model.parameters()]) == before[name]
        assert offloaded.pool.members[name].origin.fingerprint == before[name][0]


def test_what_happens_to_the_copy_of_a_pass_does_not_reach_the_kept_weights(offloaded):
    model = models_of(offloaded)["math"]
    kept, home, head = fingerprint(model), model.model.norm.weight.data_ptr(), model.lm_head.weight.data_ptr()
    seen = []

    def spoil(module, inputs, output):
        seen.append((module.norm.weight.data_ptr(), model.lm_head.weight.data_ptr()))
        for parameter in module.layers.parameters():
            parameter.data.zero_()

    model.model.register_forward_hook(spoil)
    replay.trained(offloaded)
    assert len(seen) == 4  # calibration and three steps
    assert all(copied != home and head_in_pass == head for copied, head_in_pass in seen)
    assert fingerprint(model) == kept


def test_the_output_head_of_an_offloaded_teacher_stays_on_the_device(offloaded):
    for name, member in offloaded.pool.members.items():
        head = models_of(offloaded)[name].lm_head.weight
        assert member.head.weight is head and head.device == offloaded.accelerator.device
        assert not any(tensor is head for tensor in member.host._in_host_memory)
        assert len(member.host._in_host_memory) > 10
