"""The small Llama: 0.87M parameters, float32."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trustmopd.testbed.tokenizer import SPECIAL, VOCAB_SIZE


def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL.index("<pad>"),
        bos_token_id=SPECIAL.index("<bos>"),
        eos_token_id=SPECIAL.index("<eos>"),
    )


def make_model(seed: int) -> LlamaForCausalLM:
    """Random weights from `seed`; the caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config()).float()
