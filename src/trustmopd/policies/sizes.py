"""What a frozen model weighs once it is loaded, from its configuration."""

from dataclasses import dataclass
from typing import Any

import torch

from trustmopd.checkpoints.meta_model import skeleton
from trustmopd.policies.teacher import Teacher


@dataclass(frozen=True)
class Size:
    """Numbers in the output head (with embeddings that are tied to it) and in the rest, and how they are stored."""

    head: int
    rest: int
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return (self.head + self.rest) * self.dtype.itemsize

    @property
    def bytes_without_head(self) -> int:
        return self.rest * self.dtype.itemsize


def size_of(given: Teacher, dtype: torch.dtype, *, trust_remote_code: bool = False) -> Size | None:
    """`dtype` is for models that have none of their own. None if the model cannot be built from a configuration on this
    machine."""
    bare: Any = skeleton(given.model, revision=given.revision, trust_remote_code=trust_remote_code)
    if bare is None:
        return None
    stored = dtype if given.dtype is None else bare.config.dtype if given.dtype == "auto" else given.dtype
    stored = getattr(torch, stored) if isinstance(stored, str) else stored or torch.float32
    head = {id(parameter): parameter.numel() for parameter in bare.get_output_embeddings().parameters()}
    rest = sum(parameter.numel() for parameter in bare.parameters() if id(parameter) not in head)
    return Size(sum(head.values()), rest, stored)
