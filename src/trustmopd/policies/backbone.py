"""The forward that the student and the frozen policies share: everything below the output head."""

import inspect
from typing import Any

from jaxtyping import Float, Int, Shaped
from peft import PeftModel
from torch import Tensor, nn


def backbone_of(model: Any) -> nn.Module:
    """The module that computes the last hidden state, with the adapters that are active in it."""
    causal = model.base_model.model if isinstance(model, PeftModel) else model
    # Llama 4 and Mllama name an attribute that their text models do not have: `base_model` is then the whole model.
    return causal.model if causal.base_model is causal else causal.base_model


def takes_positions(backbone: nn.Module) -> bool:
    return "position_ids" in inspect.signature(backbone.forward).parameters


def last_hidden_states(
    backbone: nn.Module, input_ids: Int[Tensor, "B L"], attention_mask: Shaped[Tensor, "B L"] | None
) -> Float[Tensor, "B L H"]:
    """Positions count from the first token of each sequence, as in generation, so padding does not change the result.
    (TRL's own forward counts from the padding.) Without a mask, every sequence starts in the first column."""
    if attention_mask is None:
        return backbone(input_ids=input_ids, use_cache=False).last_hidden_state
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}
    if takes_positions(backbone):
        inputs["position_ids"] = (attention_mask.long().cumsum(dim=1) - 1).clamp_min(0)
    return backbone(**inputs).last_hidden_state
