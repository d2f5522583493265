"""Training that goes on by itself when sampling breaks."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from trustmopd.rollouts.finite import NotFinite

RESTARTS = 3
Made = TypeVar("Made")


def with_restarts(what: str, train: Callable[[bool], Made]) -> tuple[Made, list[str]]:
    """What `train` returns, and the faults on the way. It is called again after each, up to three times, and continues
    from its last checkpoint. Its argument is whether the sampling may be compiled: from the second restart on, not."""
    faults: list[str] = []
    while True:
        try:
            return train(len(faults) < 2), faults
        except NotFinite as error:
            faults.append(str(error))
            if len(faults) > RESTARTS:
                raise NotFinite(f"{what} broke {len(faults)} times. The last time: {error}") from None
        # Outside of the handler, so that the old trainer can be freed.
        print(f"{what}: {faults[-1]} Restart {len(faults)} of {RESTARTS}, from the last checkpoint.", flush=True)
        release()


def release() -> None:
    """Give back the GPU memory of models that are no longer used, and forget what was compiled for them. A model
    compiled later would otherwise be compiled for batches of any size, because its size is another."""
    gc.collect()
    if torch.cuda.is_available():
        torch.compiler.reset()
        torch.cuda.empty_cache()
