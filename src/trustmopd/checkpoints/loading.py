"""Models with all their weights, from the files and in every process.

Where a checkpoint lacks some of its model's weights, transformers would put random numbers. With FSDP, only the first
process of a node loads a model; the others have zeros until the model is wrapped. ZeRO-3 splits a model between the
processes while it is loaded. Both are meant for the model that is trained. Frozen policies are never wrapped, so they,
and copies of the student, need complete weights in every process.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.integrations import deepspeed as hf
from transformers.utils import logging

_FIRST_READS = "FSDP_CPU_RAM_EFFICIENT_LOADING"


class MissingWeights(ValueError):
    """Some of a model's weights are not in its files."""


def load_complete(source: Any, *, by: Any = AutoModelForCausalLM, **options: Any) -> Any:
    """A model by the `from_pretrained` of a class, with all its weights from the files."""
    model, report = by.from_pretrained(source, output_loading_info=True, **options)
    if missing := _untied(model, set(report["missing_keys"])):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise MissingWeights(f"it has no weights for {', '.join(missing[:3])}{more}, which would be random")
    return model


def _untied(model: nn.Module, missing: set[str]) -> list[str]:
    """Without those that are other names of weights which are there: a model's own code may tie them."""
    named = dict(model.named_parameters(remove_duplicate=False)) if missing else {}
    there = {id(weight) for name, weight in named.items() if name not in missing}
    return sorted(name for name in missing if name not in named or id(named[name]) not in there)


@contextmanager
def silent() -> Iterator[None]:
    """No line and no bar of transformers, whose switch for bars is the Hub's too."""
    level, bars, hub = logging.get_verbosity(), logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the Hub's, if the environment decides on its bars
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
            (enable_progress_bars if hub else disable_progress_bars)()


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
