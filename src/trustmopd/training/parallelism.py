"""How a run is spread over processes: DDP, FSDP2 or DeepSpeed. Kinds that are not tested are refused.

Messages and the manifest call it the engine of the run; `rollout_engine.py` makes the one that samples.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.distributed.fsdp import StateDictType

from trustmopd.planning.launching import asked_engine
from trustmopd.training.config import TrustMOPDConfig

#: What each engine splits between the processes. Engines that are not listed are refused.
_SPREAD = {
    "one process": "nothing",
    "DDP": "nothing",
    "FSDP2": "weights, gradients and optimizer",
    "ZeRO-2": "gradients and optimizer",
    "ZeRO-3": "weights, gradients and optimizer",
}
#: Where accelerate runs DDP, or one process, though FSDP was asked for.
WITHOUT_FSDP = {DistributedType.NO, DistributedType.MULTI_CPU}


@dataclass(frozen=True)
class Parallelism:
    """As the manifest stores it. `checkpoints` is `full` or `sharded`. Sharded: each process writes its own file of
    optimizer state. The student's weights are saved as one model in both cases."""

    name: str
    processes: int
    nodes: int
    device: str
    spreads: str
    checkpoints: str

    @classmethod
    def of(cls, accelerator: Accelerator) -> "Parallelism":
        state = accelerator.state
        name, checkpoints = "DDP", "full"
        if accelerator.distributed_type == DistributedType.FSDP:
            name = f"FSDP{state.fsdp_plugin.fsdp_version}"
            checkpoints = "full" if "FULL" in str(state.fsdp_plugin.state_dict_type) else "sharded"
        elif accelerator.distributed_type == DistributedType.DEEPSPEED:
            name, checkpoints = f"ZeRO-{state.deepspeed_plugin.zero_stage}", "sharded"
        elif accelerator.num_processes == 1:
            name = "one process"
        return cls._here(name, accelerator.num_processes, accelerator.device.type, checkpoints)

    @classmethod
    def expected(cls, args: TrustMOPDConfig) -> "Parallelism":
        """What accelerate will run, before there is an Accelerator."""
        name, checkpoints, kind = asked_engine(args), "full", args.distributed_state.distributed_type
        if name.startswith("FSDP") and kind in WITHOUT_FSDP:
            name = "DDP"
        elif name.startswith("FSDP"):
            own = (args.fsdp_plugin_args or {}).get("state_dict_type")
            stored = own or os.environ.get("FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT")
            checkpoints = "full" if "FULL" in str(stored) else "sharded"
        elif name.startswith("ZeRO"):
            checkpoints = "sharded"
        name = "one process" if name == "DDP" and args.world_size == 1 else name
        return cls._here(name, args.world_size, args.device.type, checkpoints)

    @classmethod
    def _here(cls, name: str, processes: int, device: str, checkpoints: str) -> "Parallelism":
        nodes = processes // int(os.environ.get("LOCAL_WORLD_SIZE", processes))
        return cls(name, processes, nodes, device, _SPREAD.get(name, ""), checkpoints)

    def __str__(self) -> str:
        if self.processes == 1:
            return f"{self.name} ({self.device})"
        where = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        spread = f"; spreads {self.spreads}" if self.spreads != "nothing" else ""
        world = f"{self.name}, {self.processes} processes on {where} ({self.device})"
        return f"{world}{spread}; {self.checkpoints} checkpoints"

    def check(self, args: TrustMOPDConfig) -> None:
        """Refuse an engine that is not the one asked for, or that is not tested."""
        asked = asked_engine(args)
        if asked != "DDP" and asked[:4] != self.name[:4]:
            raise ValueError(
                f"{asked} was asked for, but accelerate runs {self}. {asked} needs GPUs and several processes: start "
                "them with a launcher (docs/scale.md has the commands). To run without it, remove training.fsdp and "
                "training.deepspeed, or use recipes/accelerate/ddp.yaml."
            )
        if self.name not in _SPREAD:
            better = "fsdp_version: 2" if self.name.startswith("FSDP") else "zero_stage: 2 or zero_stage: 3"
            raise ValueError(f"the engine {self.name} is not supported. Set {better}; recipes/accelerate has examples.")
        zero = args.deepspeed_plugin.deepspeed_config.get("zero_optimization", {}) if args.deepspeed_plugin else {}
        if self.name == "ZeRO-3" and not zero.get("stage3_gather_16bit_weights_on_model_save"):
            raise ValueError(
                "zero3_save_16bit_model = false: transformers could not load the weights in the checkpoints. Set it to "
                "true (in DeepSpeed's own file: stage3_gather_16bit_weights_on_model_save)."
            )


@contextmanager
def saving_whole_weights(accelerator: Accelerator) -> Iterator[None]:
    """Inside, FSDP saves weights that transformers can load, even if its checkpoints are sharded."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None:
        yield
        return
    kept, plugin.state_dict_type = plugin.state_dict_type, StateDictType.FULL_STATE_DICT
    try:
        yield
    finally:
        plugin.state_dict_type = kept
