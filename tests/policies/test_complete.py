"""A checkpoint that has all its weights is never refused, however it is stored; one that lacks some is."""

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.utils import logging

from trustmopd.checkpoints.loading import load_complete, silent
from trustmopd.checkpoints.meta_model import check_complete

pytestmark = pytest.mark.unit

SIZE = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZE |= {"num_key_value_heads": 1, "pad_token_id": 0, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
CONFIGS: dict[str, Any] = {
    "gpt2": GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=16),
    "gemma": Gemma3TextConfig(**SIZE),
    "untied": LlamaConfig(**SIZE, tie_word_embeddings=False),
    "qwen": Qwen3Config(**SIZE, tie_word_embeddings=True),
    "mixtral": MixtralConfig(**SIZE, num_local_experts=4),
    "experts": Qwen3MoeConfig(**SIZE, **EXPERTS),  # stored one by one, loaded as one tensor
}


def stored(name: str, folder: Path, **how: Any) -> str:
    AutoModelForCausalLM.from_config(CONFIGS[name]).save_pretrained(folder, **how)
    return str(folder)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shards", ["1GB", "4KB"])
def test_a_complete_checkpoint_passes(name: str, shards: str, tmp_path: Path) -> None:
    source = stored(name, tmp_path, max_shard_size=shards)
    check_complete("the student", source)
    load_complete(source)


def without(ending: str, name: str, folder: Path) -> str:
    """A checkpoint that lacks the first tensor whose name ends so."""
    source, file = stored(name, folder), folder / "model.safetensors"
    tensors = load_file(file)
    del tensors[next(each for each in tensors if each.endswith(ending))]
    save_file(tensors, file, {"format": "pt"})
    return source


@pytest.mark.parametrize("name", CONFIGS)
def test_one_tensor_less_is_named(name: str, tmp_path: Path) -> None:
    source = without("attn.c_proj.weight" if name == "gpt2" else "o_proj.weight", name, tmp_path)
    for load in (lambda: check_complete("the student", source), lambda: load_complete(source)):
        with pytest.raises(ValueError, match=r"\.0\.(self_)?attn\.(o|c)_proj\.weight"):
            load()


@pytest.mark.parametrize(("name", "ending"), [("mixtral", "experts.0.w2.weight"), ("experts", "0.down_proj.weight")])
def test_one_expert_less_is_not_loaded(name: str, ending: str, tmp_path: Path) -> None:
    """By transformers itself: the tensor of all experts has another shape then."""
    with pytest.raises(RuntimeError, match="mismatched"):
        load_complete(without(ending, name, tmp_path))


def test_a_model_without_its_head_passes_only_if_the_head_is_the_embedding(tmp_path: Path) -> None:
    for name in ("qwen", "untied"):
        AutoModel.from_config(CONFIGS[name]).save_pretrained(tmp_path / name)
    check_complete("the student", str(tmp_path / "qwen"))
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        check_complete("the student", str(tmp_path / "untied"))


def test_a_head_that_a_models_own_code_ties_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model(tied=False)
    kept = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    model.save_pretrained(tmp_path, state_dict=kept)

    def tie(self: Any, *_: Any, **__: Any) -> None:
        self.lm_head.weight = self.model.embed_tokens.weight

    monkeypatch.setattr(type(model), "tie_weights", tie)
    check_complete("the student", str(tmp_path))
    assert torch.equal(load_complete(tmp_path).lm_head.weight, model.model.embed_tokens.weight)


@pytest.mark.parametrize("hub", [True, False])
@pytest.mark.parametrize("bars", [True, False])
def test_nothing_stays_silent(hub: bool, bars: bool) -> None:
    before = logging.get_verbosity(), logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    try:
        (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
        (enable_progress_bars if hub else disable_progress_bars)()
        with silent():
            assert not logging.is_progress_bar_enabled()
        found = logging.get_verbosity(), logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
        assert found == (before[0], bars, hub)
    finally:
        (logging.enable_progress_bar if before[1] else logging.disable_progress_bar)()
        (enable_progress_bars if before[2] else disable_progress_bars)()
