"""A frozen model sharded over the processes: each keeps a part of every layer, and fetches the rest for a pass."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft import PeftModel
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel

from trustmopd.policies.backbone import backbone_of, last_hidden_states
from trustmopd.policies.hosts.resident import ResidentHost


class ShardedHost(ResidentHost):
    """The output head, with embeddings that are tied to it, is not sharded. All processes make a pass together; one
    that has fewer rows makes dummy passes."""

    asks_everyone = True

    def __init__(self, model: PreTrainedModel | PeftModel, device: torch.device):
        head = model.get_output_embeddings().to(device)
        backbone = backbone_of(model)
        lists = [module for module in backbone.modules() if isinstance(module, nn.ModuleList)]
        if not lists:
            raise ValueError(
                f"{type(backbone).__name__} cannot be sharded: it has no list of layers. Place it elsewhere (resident, "
                "offload)."
            )
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        for layer in max(lists, key=len):
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        fully_shard(backbone, mesh=mesh, reshard_after_forward=True, ignored_params=set(head.parameters()))
        super().__init__(model, device)

    @contextmanager
    def on_device(self, passes: int) -> Iterator[None]:
        most = torch.tensor(passes, device=self.device)
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
        yield
        token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        for _ in range(int(most) - passes):
            last_hidden_states(backbone_of(self.model), token, torch.ones_like(token))
