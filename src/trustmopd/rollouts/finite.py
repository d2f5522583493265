"""Sampling stops at the first logit that is not finite. CUDA would end the whole process, with no word on the cause."""

from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList


class NotFinite(FloatingPointError):
    """A model gave NaN or infinite logits while it sampled."""


class _Check(LogitsProcessor):
    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        largest = scores.max(dim=-1).values  # NaN if one is
        if not bool(torch.isfinite(largest).all()):
            rows = int((~torch.isfinite(largest)).sum())
            raise NotFinite(
                f"{rows} of {len(scores)} responses have logits that are not finite at token {input_ids.shape[1]}, "
                f"prompt included. {_cause(self.model)}"
            )
        return scores


def finite_logits(model: Any) -> LogitsProcessorList:
    """What `generate` takes as `logits_processor`."""
    return LogitsProcessorList([_Check(model)])


def _cause(model: Any) -> str:
    damaged = [name for name, weight in model.named_parameters() if not bool(torch.isfinite(weight).all())]
    if damaged:
        return (
            f"{len(damaged)} of its tensors have NaN or infinite weights, the first {damaged[0]}. Its files are "
            "damaged, or training diverged: then lower the learning rate."
        )
    return "Its weights are finite, so the fault is in the sampling: try it without a compiled cache."
