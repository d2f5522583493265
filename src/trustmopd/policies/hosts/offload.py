"""A frozen model in host memory, copied to the device for each pass."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from trustmopd.policies.hosts.resident import ResidentHost


class OffloadedHost(ResidentHost):
    """Nothing is copied back. The output head, which is needed later, always stays on the device. On a GPU the copy can
    start during the pass of another model (`prefetch`), and then needs memory besides that model."""

    def __init__(self, model: PreTrainedModel | PeftModel, device: torch.device):
        self.model = model.to("cpu")
        self.device = device
        self._in_host_memory: list[nn.Parameter | Tensor] = []
        self._arriving: list[Tensor] | None = None
        head = model.get_output_embeddings()
        head.to(device)
        on_device = {id(tensor) for tensor in head.parameters()}
        for tensor in (*model.parameters(), *model.buffers()):
            if id(tensor) not in on_device:
                tensor.data = tensor.data.pin_memory() if device.type == "cuda" else tensor.data
                self._in_host_memory.append(tensor)

    def prefetch(self) -> None:
        if self._arriving is None:
            with _copying(self.device):
                self._arriving = [
                    tensor.data.to(self.device, non_blocking=True, copy=True) for tensor in self._in_host_memory
                ]

    @contextmanager
    def on_device(self, passes: int) -> Iterator[None]:
        kept = [tensor.data for tensor in self._in_host_memory]
        self.prefetch()
        arrived, self._arriving = self._arriving or [], None
        if self.device.type == "cuda":
            computing = torch.cuda.current_stream(self.device)
            computing.wait_stream(_copy_stream(self.device))
            for data in arrived:
                data.record_stream(computing)  # so that their memory is not reused before the pass ends
        for tensor, data in zip(self._in_host_memory, arrived, strict=True):
            tensor.data = data
        try:
            yield
        finally:
            for tensor, data in zip(self._in_host_memory, kept, strict=True):
                tensor.data = data


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _copying(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.stream(_copy_stream(device)) if device.type == "cuda" else nullcontext()
