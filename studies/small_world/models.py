"""The small Llama, float32: of the shipped size, 0.87M parameters, or of another."""

from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from studies.small_world.tokenizer import SPECIAL, VOCAB_SIZE


@dataclass(frozen=True)
class Size:
    hidden: int = 128
    layers: int = 4


SHIPPED_SIZE = Size()


def config(size: Size = SHIPPED_SIZE) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=size.hidden,
        intermediate_size=3 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL.index("<pad>"),
        bos_token_id=SPECIAL.index("<bos>"),
        eos_token_id=SPECIAL.index("<eos>"),
    )


def make_model(seed: int, size: Size = SHIPPED_SIZE) -> LlamaForCausalLM:
    """Random weights from `seed`; the caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config(size)).float()
