"""What is read off a batch as TRL makes it: labels of its prompts, whole sequences, the tokens that count."""

from typing import Any

import torch
from torch import Tensor


def text(label: Any) -> str | None:
    return None if label is None else str(label)


def texts(labels: Any) -> list[str] | None:
    if labels is None:
        return None
    return [str(label) for label in labels] if isinstance(labels, (list, tuple)) else [str(labels)]


def sequences(batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Prompt and response as one sequence, and its attention mask."""
    input_ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    return input_ids, torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)


def response_mask(batch: dict[str, Any]) -> Tensor:
    """TRL's: the EOS counts, a truncated response counts in full, what a tool wrote does not."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask
