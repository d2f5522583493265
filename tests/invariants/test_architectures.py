"""A step of families that differ from most, against full logits in float64: where the backbone is, and dropout."""

from collections.abc import Callable
from functools import partial

import pytest
import replay
import tiny
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    Llama4TextConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
    SeedOssConfig,
)


def llama4() -> PreTrainedModel:
    """Two experts a layer; attention in chunks that are shorter than a prompt with its response."""
    sizes = {"intermediate_size_mlp": 64, "num_local_experts": 2, "head_dim": 8, "attention_chunk_size": 16}
    return tiny.model(family=partial(Llama4TextConfig, **sizes))


def with_dropout(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


SIZES = {"vocab_size": tiny.VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
OPT = {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 32}
#: Dropout of modules (GPT-2), of functions and of whole layers (OPT), and of attention alone (Seed-OSS).
STUDENTS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama4": llama4,
    "gpt2": lambda: with_dropout(GPT2Config(**SIZES, n_positions=128, n_embd=32, n_layer=2, n_head=4)),
    "opt": lambda: with_dropout(OPTConfig(**SIZES, **OPT, attention_dropout=0.1, layerdrop=0.5, enable_bias=False)),
    "seed_oss": lambda: tiny.model(family=partial(SeedOssConfig, head_dim=8)),
}


@pytest.mark.parametrize("family", STUDENTS)
def test_a_step_is_the_papers(family, tmp_path):
    student = STUDENTS[family]()
    teachers = {name: tiny.specialist(student, seed) for seed, name in enumerate(replay.TEACHERS, 1)}
    step = replay.run(tmp_path, student=STUDENTS[family](), teachers=teachers)
    expected = replay.plain_objective(student, list(teachers.values()), replay.plain_trust())
    assert step.loss == pytest.approx(expected.loss, rel=1e-5)
    assert replay.difference(expected.gradient, step.gradient) < 1e-5
