"""The order of the prompts in an epoch, which depends only on seed and epoch."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler
from transformers import TrainerCallback, TrainerState

from trustmopd.training.step.allocation import derived_seed


class EpochSampler(Sampler, TrainerCallback):
    """TRL's sampler draws every epoch's order from one generator, so a run resumed in its third epoch would begin with
    the order of the first. Here each epoch has its own seed; the order of the first epoch is TRL's."""

    def __init__(self, repeats: Any):
        self.repeats = repeats
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.repeats)

    def __iter__(self) -> Iterator[int]:
        if self.repeats.shuffle:
            seed = self.repeats.seed
            self.repeats.generator.manual_seed(derived_seed(seed, self.epoch) if self.epoch else seed)
        yield from self.repeats

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Accelerate calls `set_epoch` too, but does not find the sampler in a run that is resumed in several
        processes, where it is inside two wrappers."""
        self.set_epoch(int(state.epoch or 0))
