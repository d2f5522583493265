"""SIGTERM, which a scheduler sends some time before it takes the machine: the run saves its last step, and ends.

A step that is under way is given up, since no weight has changed yet: the resumed run makes it again. Processes that
train together ask one another at the same places, so that none waits for one that has left.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from transformers import TrainerCallback

from trustmopd.util.messages import Preempted

#: A launcher passes on the SIGTERM that its processes may also have got themselves: within these seconds it is one.
_PASSED_ON = 5.0 if "TORCHELASTIC_RUN_ID" in os.environ else 0.0
_ASKED = (
    b"\nSIGTERM: the step under way is given up, the last whole step is saved, and the run ends. A second SIGTERM ends "
    b"it at once.\n"
)


class Preemption(TrainerCallback):
    """`asked`: whether this process was asked to end."""

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        self.asked = False
        self._asked_at = 0.0
        self._random = _random_state()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Inside, SIGTERM asks the run to end. A handler of the user's own stays; Ray's would only end the process."""
        before = signal.getsignal(signal.SIGTERM)
        is_free = before is signal.SIG_DFL or getattr(before, "__module__", "").startswith("ray.")
        if not is_free or threading.current_thread() is not threading.main_thread():
            yield
            return
        signal.signal(signal.SIGTERM, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _note(self, *_: Any) -> None:
        if not self.asked:
            self.asked, self._asked_at = True, time.monotonic()
            os.write(2, _ASKED)  # print may be in the middle of a line
        elif time.monotonic() - self._asked_at > _PASSED_ON:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def check(self) -> None:
        """End the run in every process if any was asked to."""
        asked = torch.tensor(float(self.asked), device=self.accelerator.device)
        if self.accelerator.reduce(asked, "sum") > 0:
            raise Preempted

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.check()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The next step draws from these random numbers; so does the one that repeats it."""
        self._random = _random_state()

    on_evaluate = on_step_end

    def restore_random_state(self) -> None:
        """As after the last whole step."""
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])
        torch.set_rng_state(self._random[2])
        if self._random[3] is not None:
            torch.cuda.set_rng_state(self._random[3])


def _random_state() -> tuple[Any, Any, torch.Tensor, torch.Tensor | None]:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda
