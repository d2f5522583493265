"""Adapters: how they are made, how they are stored, and what they add to the weights."""

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from studies.smollm2.settings import Lora
from trustmopd.util.files import whole_file, whole_folder

ADAPTER = "adapter_model.safetensors"


def lora_config(lora: Lora) -> LoraConfig:
    """On every linear layer but the output's, which is the embedding."""
    return LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def save_adapter(model: Any, out: Path) -> None:
    """In bfloat16, half the size: 4.9 MB at rank 8. What is loaded later is this, rounded."""
    with whole_folder(out, overwrite=True) as folder:
        model.save_pretrained(folder)
        halve(folder / ADAPTER)


def halve(adapter: Path) -> None:
    """From float32 to bfloat16."""
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(adapter).items()}
    save_file(tensors, adapter, metadata={"format": "pt"})


def scale_to(scale: float, adapter: Path, known: float) -> None:
    """Let an adapter add `scale` times to the weights what training made of it. The file says at which scale it is, so
    that the two never disagree; if it does not say, it is at the `known` one."""
    with safe_open(adapter, framework="pt") as file:
        factor = scale / float((file.metadata() or {}).get("scale", known))
    if factor != 1:
        tensors = load_file(adapter)
        tensors |= {name: factor * tensor for name, tensor in tensors.items() if ".lora_B." in name}
        with whole_file(adapter) as partial:
            save_file(tensors, partial, metadata={"format": "pt", "scale": str(scale)})


def changes(adapter: Path) -> dict[str, Tensor]:
    """Parameter → what an adapter adds to it, in float64."""
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    scale = config["lora_alpha"] / config["r"]
    tensors = load_file(adapter / ADAPTER)
    found = {}
    for name, low in tensors.items():
        if name.endswith(".lora_A.weight"):
            high = tensors[name.replace(".lora_A.", ".lora_B.")]
            target = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
            found[target] = scale * (high.double() @ low.double())
    return found
