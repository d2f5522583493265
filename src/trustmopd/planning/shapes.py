"""What a model weighs and how wide it is, from its configuration alone."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoConfig

from trustmopd.checkpoints.meta_model import check_student_lora, skeleton
from trustmopd.util.messages import first_line


@dataclass(frozen=True)
class Shape:
    """Numbers of parameters: of the whole model, of its output head (which may be its embedding too), of the embedding
    where it is a matrix of its own. Then the widths that activations and caches depend on; `key_value` is of keys and
    values together, in one layer."""

    parameters: int
    head: int
    embedding: int
    layers: int
    hidden: int
    intermediate: int
    key_value: int
    vocab: int

    @property
    def layer(self) -> float:
        """Parameters of one layer."""
        return (self.parameters - self.head - self.embedding) / self.layers

    @property
    def root(self) -> int:
        """What belongs to no layer: sharding engines keep it gathered from the forward to the backward."""
        return self.head + self.embedding


def shape_of(role: str, model: Any, revision: str | None = None, trust_remote_code: bool = False) -> Shape:
    """Of a path, a Hub id or a loaded model; `role` names it in errors."""
    if isinstance(model, (str, Path)):
        return _stored_shape(role, str(model), revision, trust_remote_code)
    return _built_shape(role, type(model).__name__, skeleton(model))


@cache
def _stored_shape(role: str, source: str, revision: str | None, trust_remote_code: bool) -> Shape:
    try:
        AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        here = Path(source).is_dir()
        found = "cannot be read from that folder" if here else "is not on this machine, and could not be fetched"
        raise ValueError(
            f"{role}: the configuration of {source!r} {found} ({first_line(error)}). "
            "Give a folder that has its config.json; no weights are needed."
        ) from error
    return _built_shape(role, source, skeleton(source, revision=revision, trust_remote_code=trust_remote_code))


def _built_shape(role: str, source: str, model: Any) -> Shape:
    head = None if model is None else model.get_output_embeddings()
    if head is None:
        raise ValueError(
            f"{role}: {source!r} cannot be built as a causal language model from its configuration, so its parameters "
            "cannot be counted. Check its config.json."
        )
    tied = model.get_input_embeddings().weight is head.weight
    embedding = 0 if tied else model.get_input_embeddings().weight.numel()
    config = model.config.get_text_config()
    hidden, heads = config.hidden_size, config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or hidden // heads
    key_value_heads = getattr(config, "num_key_value_heads", None) or heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        head=head.weight.numel(),
        embedding=embedding,
        layers=config.num_hidden_layers,
        hidden=hidden,
        intermediate=getattr(config, "intermediate_size", None) or 4 * hidden,
        key_value=2 * key_value_heads * head_width,
        vocab=config.vocab_size,
    )


def lora_parameters(config: LoraConfig, model: Any, trust_remote_code: bool = False) -> int:
    """Parameters of such an adapter on this model. The model has been counted before, so it can be built."""
    adapted = check_student_lora(config, model, trust_remote_code=trust_remote_code)
    assert adapted is not None
    return sum(p.numel() for name, p in adapted.named_parameters() if "lora_" in name)


def dtype_of(dtype: Any, model: Any, revision: str | None = None, trust_remote_code: bool = False) -> torch.dtype:
    """As torch has it. "auto" and None are the dtype that the model is stored in."""
    if dtype in ("auto", None):
        stored = isinstance(model, (str, Path))
        options = {"revision": revision, "trust_remote_code": trust_remote_code}
        dtype = (AutoConfig.from_pretrained(model, **options) if stored else model.config).dtype or torch.float32
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype
