"""A short name for the weights of a model: equal fingerprints, equal policies."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

_CHUNK = 1 << 22


def fingerprint(model: nn.Module) -> str:
    """Depends on every bit of every parameter, and is computed where the weights lie: no copy of them to the host."""
    # Positions are settings, not weights: a long-context variant has the same parameters and another policy.
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
    """Parameters by name. A fresh LoRA adapter, whose B is still 0, is left out: it changes nothing, and its random A
    would make one initial student look like another for every seed."""
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        zero_at_first = name.replace(".lora_A.", ".lora_B.").replace(".lora_embedding_B.", ".lora_embedding_A.")
        if ".lora_" not in name or bool(parameters.get(zero_at_first, parameter).any()):
            yield name.replace("base_model.model.", "").replace(".base_layer.", "."), parameter


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)


@torch.no_grad()
def _checksum(tensor: Tensor) -> int:
    """Sum of the tensor's words, each times a number of its position, mod 2^64: whole numbers, so the order of a
    parallel sum does not matter, and the same on every device."""
    words = tensor.detach().contiguous().view(-1).view(torch.uint8)
    width = 4 if words.numel() % 4 == 0 else 2 if words.numel() % 2 == 0 else 1
    words = words.view({4: torch.int32, 2: torch.int16, 1: torch.uint8}[width])
    total = 0
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK].to(torch.int64)
        position = torch.arange(start, start + part.numel(), device=part.device, dtype=torch.int64)
        total += int(((part + 0x9E3779B9) * (2 * position + 1)).sum())
    return total % (1 << 64)
