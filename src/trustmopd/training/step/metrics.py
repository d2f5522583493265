"""The metrics of a step: means over all response tokens of the global batch."""

import sys
from collections import Counter
from collections.abc import Iterable

import psutil
import torch
from accelerate import Accelerator
from torch import Tensor

from trustmopd.method import Objective, calibrated_scores
from trustmopd.training.step.candidates import ScoredCandidates


class StepTotals:
    """Sums and counts of each metric in float64; `reduce` adds up the processes, which must all have the same
    metrics."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()

    def add(self, metric: str, values: Tensor, *, count: int | None = None) -> None:
        self._sums[metric] = self._sums.get(metric, 0) + values.detach().double().sum()
        self._counts[metric] += values.numel() if count is None else count

    def reduce(self, accelerator: Accelerator) -> dict[str, float]:
        """Means over everything added since the last call; sums for metrics that are added with `count=0`."""
        if not self._sums:
            return {}
        names = sorted(self._sums)
        totals = torch.stack([self._sums[name] for name in names])
        counted = totals.new_tensor([self._counts[name] for name in names])
        sums, counts = accelerator.reduce(torch.stack([totals, counted]), "sum").tolist()
        self._sums, self._counts = {}, Counter()
        return {name: total / count if count else total for name, total, count in zip(names, sums, counts, strict=True)}


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


def peak_memory_gib(device: torch.device) -> float:
    """Peak memory so far: of the accelerator if there is one, otherwise of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / 2**30
    import resource  # not on Windows; psutil reports a peak only there

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # bytes on macOS, KiB on Linux
