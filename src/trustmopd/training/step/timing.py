"""Seconds by phase of a training step."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class PhaseClock:
    """Each phase counts only its own time: a phase inside another one pauses the outer one."""

    def __init__(self, device: torch.device):
        self._device = device
        self._open: list[str] = []
        self._since = 0.0
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self._turn()
        self._open.append(phase)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def take(self) -> dict[str, float]:
        """The seconds since the last call; then start again from 0."""
        seconds, self.seconds = dict(self.seconds), defaultdict(float)
        return seconds

    def _turn(self) -> None:
        # Kernels run on after their call returns. Without this, their time would be counted for the next phase.
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now
