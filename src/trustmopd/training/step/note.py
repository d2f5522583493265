"""What a step leaves behind: its metrics, its token records, and the gap to the engine's log-probabilities."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import psutil
import torch
from accelerate import Accelerator
from torch import Tensor

from trustmopd.method import Objective, calibrated_scores
from trustmopd.training.step.batch import Batch, StepContext
from trustmopd.training.step.candidates import ScoredCandidates
from trustmopd.training.step.groups import GroupTotals
from trustmopd.training.step.inspect import inspected
from trustmopd.training.step.records import TokenRecorder
from trustmopd.training.step.rollout_gap import LogprobGap


class StepLog:
    """Collects over the micro-batches of a step, in all processes. The rule asks the teachers of the pool; `teachers`
    are all of them. `rollout_dtype` is what the engine that samples computes in."""

    def __init__(
        self,
        context: StepContext,
        accelerator: Accelerator,
        teachers: Sequence[str],
        recorder: TokenRecorder,
        rollout_dtype: torch.dtype,
    ) -> None:
        self.args, self.pool, self.clock = context.args, context.pool, context.clock
        self.emphasis = context.emphasis
        self.accelerator = accelerator
        self.teachers = teachers
        self.recorder = recorder
        self.gap = LogprobGap(self.args.logprob_gap_limit, rollout_dtype)
        self._totals = StepTotals()
        assert self.args.max_completion_length is not None
        self.groups = GroupTotals(teachers, self.args.max_completion_length, accelerator.device)

    def note(
        self, scored: ScoredCandidates, result: Objective, batch: Batch, mu: Tensor | None, step: int | None
    ) -> None:
        """Add a micro-batch. `step` counts the steps before it; None is an evaluation, of which only the means of
        allocation are collected."""
        asked = self.pool.teachers
        for metric, values in allocation_metrics(scored, result, mu, asked, self.teachers).items():
            self._totals.add(metric, values)
        self._totals.add("candidates/degenerate_tokens", result.degenerate, is_sum=True)
        if step is None:
            return
        if self.recorder.due(step):
            with self.clock("records"):
                self.recorder.note(scored, result, batch.rollouts, asked)
                for metric, values in inspected(scored, result, batch, asked).items():
                    self._totals.add(metric, values)
        multipliers = None if self.emphasis is None else self.emphasis.of(batch)(scored.at, result.weights)
        self.groups.note(scored, result, batch, asked, multipliers)
        self._totals.add("completions/repetition", repetition(batch.response_ids, batch.attended))
        if self.emphasis is not None:
            self.emphasis.note(scored.at, result, batch)
        if batch.engine_logp is not None and scored.sampled_logp is not None:
            self.gap.add(batch.engine_logp[batch.mask != 0], scored.sampled_logp)

    def means(self) -> dict[str, float]:
        """Of everything noted since the last call."""
        return self._totals.reduce(self.accelerator)

    def finish(self, step: int) -> dict[str, float]:
        """The metrics of a step, after its last micro-batch; `step` counts the steps before it."""
        if self.recorder.due(step):
            with self.clock("records"):
                self.recorder.finish(step + 1, writes=self.accelerator.is_main_process)
        self._note_usage()
        metrics = self.means() | self.groups.finish(self.accelerator)
        metrics |= self.emphasis.finish(self.accelerator) if self.emphasis is not None else {}
        if self.args.rules.rollouts.beside:
            metrics |= self.gap.finish(self.accelerator, step)
        seconds = {"records": 0.0} if self.args.record_allocation_every else {}
        metrics |= {f"seconds/{phase}": value for phase, value in (seconds | self.clock.take()).items()}
        return metrics | {"memory/peak_gib": peak_memory_gib(self.accelerator.device)}

    def _note_usage(self) -> None:
        """What policies elsewhere computed and sent, over all processes, and how long a process waited for each."""
        device = self.accelerator.device
        for name, gap in (self.pool.elsewhere.gaps if self.pool.elsewhere else {}).items():
            self._totals.add(f"teacher_gap/{name}", torch.tensor(gap, device=device))
        for name, usage in (self.pool.elsewhere.take_usage() if self.pool.elsewhere else {}).items():
            self._totals.add(f"ray/seconds/{name}", torch.tensor(usage.seconds, device=device), is_sum=True)
            self._totals.add(f"ray/bytes/{name}", torch.tensor(usage.bytes, device=device), is_sum=True)
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


class StepTotals:
    """Sums and counts of each metric in float64; `reduce` adds up the processes, which must all have the same
    metrics."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()
        self._no_means: set[str] = set()

    def add(self, metric: str, values: Tensor, *, is_sum: bool = False) -> None:
        self._sums[metric] = self._sums.get(metric, 0) + values.detach().double().sum()
        self._counts[metric] += values.numel()
        self._no_means |= {metric} if is_sum else set()

    def reduce(self, accelerator: Accelerator) -> dict[str, float]:
        """Means over everything added since the last call, of which there is none without values; sums for metrics that
        are added with `is_sum`."""
        if not self._sums:
            return {}
        names = sorted(self._sums)
        totals = torch.stack([self._sums[name] for name in names])
        counted = totals.new_tensor([self._counts[name] for name in names])
        sums, counts = accelerator.reduce(torch.stack([totals, counted]), "sum").tolist()
        self._sums, self._counts = {}, Counter()
        found = {name: (total, count) for name, total, count in zip(names, sums, counts, strict=True)}
        return {
            name: total if name in self._no_means else total / count
            for name, (total, count) in found.items()
            if count or name in self._no_means
        }


def allocation_metrics(
    scored: ScoredCandidates, result: Objective, mu: Tensor | None, teachers: Iterable[str], all_teachers: Iterable[str]
) -> dict[str, Tensor]:
    """The values of each metric at the response tokens. Teachers that the rule does not ask have weight 0."""
    valid = scored.at.mask != 0
    weights = result.weights[:, valid]
    metrics = {f"weight/{name}": weights.new_zeros(weights.shape[1]) for name in all_teachers}
    metrics |= {f"weight/{name}": weights[k] for k, name in enumerate(teachers)}
    if result.scores is not None:
        scores = result.scores[:, valid]
        scores = scores if mu is None else calibrated_scores(scores, mu)
        metrics |= {f"score/{name}": scores[k] for k, name in enumerate(teachers)}
    metrics["agreement/max_weight"] = weights.amax(dim=0)
    metrics["agreement/effective_teachers"] = torch.special.entr(weights).sum(dim=0).exp()
    metrics["candidates/student_mass"] = scored.student_mass[valid]
    return metrics


def repetition(response_ids: Tensor, attended: Tensor, length: int = 4) -> Tensor:
    """Of each response that has any, the share of its n-grams that came before in it."""
    if response_ids.shape[1] < length:
        return response_ids.new_zeros(0)
    ngrams = response_ids.unfold(1, length, 1)
    whole = (attended != 0).unfold(1, length, 1).all(dim=-1)
    factors = ngrams.new_tensor([1_000_003**power for power in range(length)])
    hashes = torch.where(
        whole, (ngrams * factors).sum(dim=-1), -1 - torch.arange(ngrams.shape[1], device=ngrams.device)
    )
    hashes = hashes.sort(dim=1).values
    repeated = (hashes[:, 1:] == hashes[:, :-1]).sum(dim=1)
    count = whole.sum(dim=1)
    return (repeated / count.clamp_min(1))[count > 0]


def peak_memory_gib(device: torch.device) -> float:
    """Peak memory so far: of the accelerator if there is one, otherwise of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / 2**30
    import resource  # not on Windows; psutil reports a peak only there

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # bytes on macOS, KiB on Linux
