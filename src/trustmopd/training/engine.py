"""Which engine shares the run among its processes, and which are refused."""

import os
from dataclasses import dataclass

from accelerate import Accelerator
from accelerate.utils import DistributedType

from trustmopd.training.config import TrustMOPDConfig

#: What each engine spreads over the processes. Those that are not here are not tested, and refused.
_SPREAD = {
    "one process": "nothing",
    "DDP": "nothing",
    "FSDP2": "weights, gradients and optimizer",
    "ZeRO-2": "gradients and optimizer",
    "ZeRO-3": "weights, gradients and optimizer",
}


@dataclass(frozen=True)
class Engine:
    """As the manifest keeps it. `checkpoints` is `full`, or `sharded`: what a run is resumed from then lies in one file
    a process; the student's weights are one model in both."""

    name: str
    processes: int
    nodes: int
    device: str
    spreads: str
    checkpoints: str

    @classmethod
    def of(cls, accelerator: Accelerator) -> "Engine":
        state = accelerator.state
        name, checkpoints = "DDP", "full"
        if accelerator.distributed_type == DistributedType.FSDP:
            name = f"FSDP{state.fsdp_plugin.fsdp_version}"
            checkpoints = "full" if "FULL" in str(state.fsdp_plugin.state_dict_type) else "sharded"
        elif accelerator.distributed_type == DistributedType.DEEPSPEED:
            name, checkpoints = f"ZeRO-{state.deepspeed_plugin.zero_stage}", "sharded"
        elif accelerator.num_processes == 1:
            name = "one process"
        processes = accelerator.num_processes
        nodes = processes // int(os.environ.get("LOCAL_WORLD_SIZE", processes))
        return cls(name, processes, nodes, accelerator.device.type, _SPREAD.get(name, ""), checkpoints)

    def __str__(self) -> str:
        if self.processes == 1:
            return f"{self.name} ({self.device})"
        where = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        spread = f"; spreads {self.spreads}" if self.spreads != "nothing" else ""
        world = f"{self.name}, {self.processes} processes on {where} ({self.device})"
        return f"{world}{spread}; {self.checkpoints} checkpoints"

    def check(self, args: TrustMOPDConfig, accelerator: Accelerator) -> None:
        """It is the engine that was asked for, and one that is tested."""
        asked = {
            "FSDP": bool(args.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true",
            "ZeRO": bool(args.deepspeed) or os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true",
        }
        for kind, wanted in asked.items():
            if wanted and not self.name.startswith(kind):
                raise ValueError(
                    f"{kind} was asked for, but accelerate runs {self}: it shards models on accelerators only, in "
                    "several processes. Take recipes/accelerate/ddp.yaml here, or run it on GPUs."
                )
        if args.teacher_placement == "sharded" and self.processes == 1:
            raise ValueError(
                "teacher_placement = 'sharded' spreads teachers over several processes, and there is one. Start "
                "several (torchrun, accelerate launch), or use resident or offload."
            )
        if self.name not in _SPREAD:
            better = "fsdp_version: 2" if self.name.startswith("FSDP") else "zero_stage: 2 or zero_stage: 3"
            raise ValueError(
                f"the engine is {self.name}, which is not tested here. Set {better}; recipes/accelerate has files to "
                "copy."
            )
        if self.name == "ZeRO-3" and not accelerator.state.deepspeed_plugin.deepspeed_config.get(
            "zero_optimization", {}
        ).get("stage3_gather_16bit_weights_on_model_save"):
            raise ValueError(
                "zero3_save_16bit_model = false: checkpoints would hold no weights that transformers can load. Set it "
                "to true (in DeepSpeed's own file: stage3_gather_16bit_weights_on_model_save)."
            )
