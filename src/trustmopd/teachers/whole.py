"""Weights that are whole in every process.

FSDP's launcher has the first process of a node read a model, and leaves zeros in the others until the model is wrapped;
ZeRO-3 spreads a model over the processes while it is read. Both are for the model that is trained. Frozen policies are
never wrapped: they, and whatever is copied from the student, must be whole where they are used.
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
    """Models read inside have all their weights, in every process."""
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
    """Inside, the student that was read is whole in every process."""
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
