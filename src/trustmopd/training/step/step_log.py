"""What a training step leaves behind: its metrics, its token records, and the gap to the engine's log-probabilities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from trustmopd.method import Objective
from trustmopd.policies import TeacherPool
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.step.candidates import ScoredCandidates
from trustmopd.training.step.metrics import StepTotals, allocation_metrics, peak_memory_gib
from trustmopd.training.step.records import TokenRecorder
from trustmopd.training.step.rollout_gap import LogprobGap
from trustmopd.training.step.timing import PhaseClock


@dataclass
class StepLog:
    """Collects over the micro-batches of a step, in all processes. The rule asks the teachers of `pool`; `teachers` are
    all of them. `rollout_dtype` is what the engine that samples computes in."""

    args: TrustMOPDConfig
    accelerator: Accelerator
    clock: PhaseClock
    recorder: TokenRecorder
    pool: TeacherPool
    teachers: Sequence[str]
    rollout_dtype: torch.dtype

    def __post_init__(self) -> None:
        self.asked = self.pool.teachers
        self.gap = LogprobGap(self.args.logprob_gap_limit, self.rollout_dtype)
        self._totals = StepTotals()

    def note(
        self, scored: ScoredCandidates, result: Objective, batch: dict[str, Any], mu: Tensor | None, *, training: bool
    ) -> None:
        """Add a micro-batch. In an evaluation only the means of allocation are collected."""
        for metric, values in allocation_metrics(scored, result, mu, self.asked, self.teachers).items():
            self._totals.add(metric, values)
        self._totals.add("candidates/degenerate_tokens", result.degenerate, count=0)
        if training and self.recorder.active:
            with self.clock("records"):
                self.recorder.note(scored, result, batch, self.asked)
        if training and scored.sampled_logp is not None:
            self.gap.add(batch["rollout_logp"][scored.at.mask != 0], scored.sampled_logp)

    def means(self) -> dict[str, float]:
        """Of everything noted since the last call."""
        return self._totals.reduce(self.accelerator)

    def finish(self, step: int) -> dict[str, float]:
        """The metrics of a step, after its last micro-batch; `step` counts the steps before it."""
        if self.recorder.active:
            with self.clock("records"):
                self.recorder.finish(step + 1, writes=self.accelerator.is_main_process)
        self._note_usage()
        metrics = self.means()
        if self.args.use_vllm:
            metrics |= self.gap.finish(self.accelerator, step)
        seconds = {"records": 0.0} if self.args.record_allocation_every else {}
        metrics |= {f"seconds/{phase}": value for phase, value in (seconds | self.clock.take()).items()}
        return metrics | {"memory/peak_gib": peak_memory_gib(self.accelerator.device)}

    def _note_usage(self) -> None:
        """What policies elsewhere computed and sent, over all processes, and how long a process waited for each."""
        for name, usage in (self.pool.elsewhere.take_usage() if self.pool.elsewhere else {}).items():
            device = self.accelerator.device
            self._totals.add(f"ray/seconds/{name}", torch.tensor(usage.seconds, device=device), count=0)
            self._totals.add(f"ray/bytes/{name}", torch.tensor(usage.bytes, device=device), count=0)
            self._totals.add(f"ray/waiting/{name}", torch.tensor(usage.waiting, device=device))

    def forget_time(self) -> None:
        """What was done since the last step does not belong to the next one."""
        self.clock.take()
        if self.pool.elsewhere is not None:
            self.pool.elsewhere.take_usage()

    def unlogged(self, waiting: Mapping[str, list[float]], step: int) -> dict[str, float]:
        """Means of seconds and memory over the steps since the last line of metrics, which are `waiting` to be logged;
        the number of steps made, and the peak of memory so far."""
        measured = {name: values for name, values in waiting.items() if name.startswith(("seconds/", "memory/"))}
        means = {name: sum(values) / len(values) for name, values in measured.items() if values}
        return {**means, "step": step, "peak_gib": peak_memory_gib(self.accelerator.device)}
