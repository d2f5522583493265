"""Compare the engine's log-probabilities of the sampled tokens with the student's: are they the same policy?"""

from collections.abc import Iterable, Mapping

import torch
from accelerate import Accelerator
from torch import Tensor

from trustmopd.rollouts import EngineError

MEAN, MAX = "rollout/logprob_gap_mean", "rollout/logprob_gap_max"
#: Later steps may have this many times the gap of step 0, or this many nats more in 16 and in 32 bits. The gap grows a
#: little as the student becomes more certain.
_FACTOR, _SLACK_16, _SLACK_32 = 4.0, 0.02, 5e-4


class LogprobGap:
    """|log p of the engine − log p of the student| over a step's tokens, both at temperature 1. `dtype` is what the
    engine computes in."""

    def __init__(self, limit: float, dtype: torch.dtype) -> None:
        self.limit = limit
        self.slack = _SLACK_16 if dtype.itemsize == 2 else _SLACK_32
        self.first: float | None = None
        self._reset()

    def resume(self, log_history: Iterable[Mapping[str, float]]) -> None:
        """Take the first gap from the metrics of the run that is resumed."""
        self.first = next((line[MEAN] for line in log_history if MEAN in line), None)

    def _reset(self) -> None:
        self._total, self._largest, self._tokens = 0.0, 0.0, 0

    def add(self, engine_logp: Tensor, student_logp: Tensor) -> None:
        gap = (engine_logp.float() - student_logp.float()).abs()
        if gap.numel():
            self._total += float(gap.double().sum())
            self._largest = max(self._largest, float(gap.max()))
            self._tokens += gap.numel()

    def finish(self, accelerator: Accelerator, step: int) -> dict[str, float]:
        """The metrics of a step, over all processes. Refuses a gap that is too large for rounding error."""
        mine = torch.tensor([[self._total, self._tokens, self._largest]], device=accelerator.device)
        self._reset()
        everyone = accelerator.gather(mine)
        total, tokens = everyone[:, :2].sum(dim=0).tolist()
        if not tokens:
            return {}
        found = {MEAN: total / tokens, MAX: float(everyone[:, 2].max())}
        self._check(found, step)
        return found

    def _check(self, found: dict[str, float], step: int) -> None:
        gap = found[MEAN]
        limit, against = self.limit, "logprob_gap_limit"
        remedy = "or raise logprob_gap_limit if such a difference is expected"
        if self.first is not None and (later := max(_FACTOR * self.first, self.first + self.slack)) < limit:
            limit, against = later, f"its value at step 0, {self.first:.2g}"
            remedy = "and report it as a bug: vLLM does not use the weights it was given"
        if not gap <= limit:
            raise EngineError(
                f"step {step}: the vLLM engine's log-probabilities of the sampled tokens differ from the student's by "
                f"{gap:.3g} nats on average ({found[MAX]:.3g} at most); the limit is {limit:.2g}, from {against}. It "
                "samples from another policy: its head, its merged adapter or its precision may differ. Training "
                "stopped before the optimizer step, and the last checkpoint is complete. Set "
                f"rollouts.engine = transformers, {remedy}."
            )
        self.first = gap if self.first is None else self.first
