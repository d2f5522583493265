"""A frozen model that stays on the device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft import PeftModel
from transformers import PreTrainedModel


class ResidentHost:
    """One set of weights on `device`: the policies on it take turns. A model that is spread over several devices stays
    so."""

    #: Whether all processes must ask it at the same time.
    asks_everyone = False

    def __init__(self, model: PreTrainedModel | PeftModel, device: torch.device):
        self.model = model
        self.device = device
        if getattr(model, "hf_device_map", None) is None:
            model.to(device)

    def prefetch(self) -> None:
        """Begin to bring the weights to the device, during the pass of another model."""

    @contextmanager
    def on_device(self, passes: int) -> Iterator[None]:
        """Inside, this process makes this many passes."""
        yield
