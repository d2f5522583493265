"""A step of families that differ from most, against full logits in float64: where the backbone is, and dropout."""

from functools import partial

import pytest
import replay
import tiny
from transformers import AutoModelForCausalLM, GPT2Config, Llama4TextConfig, OPTConfig, PreTrainedModel, SeedOssConfig


def llama4() -> PreTrainedModel:
    """Two experts a layer; attention in chunks that are shorter than a prompt with its response."""
    sizes = {"intermediate_size_mlp": 64, "num_local_experts": 2, "head_dim": 8, "attention_chunk_size": 16}
    return tiny.model(family=partial(Llama4TextConfig, **sizes))


def test_a_step_of_llama4_is_the_papers(tmp_path):
    student = llama4()
    teachers = {name: tiny.specialist(student, seed) for seed, name in enumerate(replay.TEACHERS, 1)}
    step = replay.run(tmp_path, student=llama4(), teachers=teachers)
    expected = replay.plain_objective(student, list(teachers.values()), replay.plain_trust())
    assert step.loss == pytest.approx(expected.loss, rel=1e-5)
    assert replay.difference(expected.gradient, step.gradient) < 1e-5
