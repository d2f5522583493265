"""A short hash of a model's weights: equal fingerprints mean equal policies."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

_CHUNK = 1 << 22


def fingerprint(model: nn.Module) -> str:
    """Depends on every bit of every parameter. Computed on the device of the weights, without a copy to the host."""
    # Position settings count too: a long-context variant has the same parameters, but is another policy.
    config = getattr(model, "config", None)
    positions = getattr(config.get_text_config(), "rope_parameters", None) if config is not None else None
    return fingerprint_tensors(_effective_parameters(model), settings=positions)


def fingerprint_tensors(tensors: Iterable[tuple[str, Tensor]], settings: Mapping[str, Any] | None = None) -> str:
    """`settings` change what the tensors compute."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=_plain).encode() if settings else b"")
    for name, tensor in sorted(tensors):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {_checksum(tensor)}\n".encode())
    return digest.hexdigest()[:16]


def fingerprint_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    digest = hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())).encode())
    digest.update(repr((tokenizer.eos_token_id, getattr(tokenizer, "chat_template", None))).encode())
    return digest.hexdigest()[:16]


def _effective_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters by name, without a fresh LoRA adapter (B = 0). Such an adapter changes nothing, but its random A would
    give every seed another initial student."""
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        zero_at_first = name.replace(".lora_A.", ".lora_B.").replace(".lora_embedding_B.", ".lora_embedding_A.")
        if ".lora_" not in name or bool(parameters.get(zero_at_first, parameter).any()):
            yield name.replace("base_model.model.", "").replace(".base_layer.", "."), parameter


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)


@torch.no_grad()
def _checksum(tensor: Tensor) -> int:
    """The sum of the tensor's words, each times a factor for its position, mod 2^64. With integers the order of a
    parallel sum does not matter, so the result is the same on every device."""
    words = tensor.detach().contiguous().view(-1).view(torch.uint8)
    width = 4 if words.numel() % 4 == 0 else 2 if words.numel() % 2 == 0 else 1
    words = words.view({4: torch.int32, 2: torch.int16, 1: torch.uint8}[width])
    total = 0
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK].to(torch.int64)
        position = torch.arange(start, start + part.numel(), device=part.device, dtype=torch.int64)
        total += int(((part + 0x9E3779B9) * (2 * position + 1)).sum())
    return total % (1 << 64)
