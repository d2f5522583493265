"""Complete weights in every process.

With FSDP, only the first process of a node loads a model; the others have zeros until the model is wrapped. ZeRO-3
splits a model between the processes while it is loaded. Both are meant for the model that is trained. Frozen policies
are never wrapped, so they, and copies of the student, need complete weights in every process.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from transformers.integrations import deepspeed as hf

_FIRST_READS = "FSDP_CPU_RAM_EFFICIENT_LOADING"


@contextmanager
def whole_loading() -> Iterator[None]:
    """Models that are loaded inside have all their weights in every process."""
    flag, config = os.environ.pop(_FIRST_READS, None), hf._hf_deepspeed_config_weak_ref
    hf.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        if flag is not None:
            os.environ[_FIRST_READS] = flag
        hf._hf_deepspeed_config_weak_ref = config


@contextmanager
def whole_student(student: nn.Module, accelerator: Accelerator) -> Iterator[None]:
    """Inside, the student has all its weights in every process."""
    spread = [parameter for parameter in student.parameters() if hasattr(parameter, "ds_id")]
    if spread:
        import deepspeed

        with deepspeed.zero.GatheredParameters(spread):
            yield
        return
    if accelerator.distributed_type == DistributedType.FSDP and accelerator.state.fsdp_plugin.cpu_ram_efficient_loading:
        for tensor in (*student.parameters(), *student.buffers()):
            data = tensor.data.to(accelerator.device)
            torch.distributed.broadcast(data, src=0)
            tensor.data.copy_(data)
    yield
