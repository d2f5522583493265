"""What the sharding engines need in order to run on a CPU. Accelerate turns them on for accelerators only, and silently
runs DDP (FSDP) or one process (DeepSpeed) instead."""

import os
from typing import Any

from accelerate.state import AcceleratorState, DistributedType, PartialState
from accelerate.utils import DeepSpeedPlugin

from trustmopd.training import parallelism


def allow_sharding() -> None:
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        _allow_fsdp()
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        os.environ["DS_ACCELERATOR"] = "cpu"
        PartialState._prepare_backend = lambda *args, **kwargs: ("gloo", DistributedType.MULTI_CPU)
        _spread_small_weights()


def _spread_small_weights() -> None:
    """ZeRO-3 leaves weights below 100,000 numbers whole, so all of a small model."""
    init = DeepSpeedPlugin.__post_init__

    def without_threshold(self: DeepSpeedPlugin) -> None:
        init(self)
        self.deepspeed_config["zero_optimization"]["stage3_param_persistence_threshold"] = 0

    DeepSpeedPlugin.__post_init__ = without_threshold


def _allow_fsdp() -> None:
    init = AcceleratorState.__init__

    def with_fsdp(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        init(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = with_fsdp
    parallelism.WITHOUT_FSDP = {DistributedType.NO}
