"""Emphases that weigh groups of tokens by a statistic of the whole batch: the rows of `EMPHASES` but `even`.

The statistic is that of the step before, over all processes: so no pass is added, and neither accumulation, nor
processes, nor a token budget changes a gradient. It is in the checkpoint; the first step counts every token alike.
"""

from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from trustmopd.method import CandidateState, Objective
from trustmopd.method.objective import EmphasisRule
from trustmopd.recipe.rules import DomainNormalised, Grouped
from trustmopd.training.step.batch import Batch


class GroupEmphasis(TrainerCallback, ExportableState):
    """The multiplier of each group: the teachers in their order, and the prompts whose label names none."""

    def __init__(self, rule: Grouped, teachers: list[str], device: torch.device | str = "cpu"):
        self.rule, self.teachers = rule, teachers
        self.multipliers = torch.ones(len(teachers) + 1, dtype=torch.float64, device=device)
        self._totals = self.multipliers.new_zeros(4, len(teachers) + 1)

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"multipliers": self.multipliers.tolist()}}

    def resume(self, states: dict[str, Any]) -> None:
        """From `stateful_callbacks` of a trainer's state."""
        if found := states.get(type(self).__name__):
            self.multipliers = self.multipliers.new_tensor(found["attributes"]["multipliers"])

    def of(self, batch: Batch) -> EmphasisRule:
        return lambda at, weights: self.multipliers[self._groups(at, weights, batch)].to(weights.dtype)

    def note(self, at: CandidateState, result: Objective, batch: Batch) -> None:
        """Add a micro-batch, by group: its share of the mean over responses, the sampled tokens that are candidates,
        and sum and squares of log target − log student at these."""
        valid = at.mask != 0
        groups = self._groups(at, result.weights, batch)[valid]
        share = (valid / valid.sum(dim=1, keepdim=True).clamp_min(1))[valid].double()
        is_sampled = at.candidate_ids == at.sampled_ids.unsqueeze(-1)
        gap = torch.where(is_sampled, result.target_logp - at.student_logp.detach(), 0.0).sum(dim=-1)[valid].double()
        known = is_sampled.any(dim=-1)[valid].double()
        self._totals.index_add_(1, groups, torch.stack([share, known, gap, gap.square()]))

    def finish(self, accelerator: Accelerator) -> dict[str, float]:
        """After the last micro-batch of a step: the multipliers of the next one, and their metrics."""
        totals = accelerator.reduce(self._totals, "sum")
        self._totals = torch.zeros_like(self._totals)
        share = totals[0] / totals[0].sum().clamp_min(1e-30)
        found = _spreads(self.rule, totals) if isinstance(self.rule, DomainNormalised) else _shares(share)
        self.multipliers = found / (share * found).sum().clamp_min(1e-30)  # mean 1 over responses
        names = [*self.teachers, "others"]
        return {
            f"emphasis/{name}": value
            for name, value, seen in zip(names, self.multipliers.tolist(), share.tolist(), strict=True)
            if seen
        }

    def _groups(self, at: CandidateState, weights: Tensor, batch: Batch) -> Tensor:
        if self.rule.by == "leader":
            return weights.argmax(dim=0)
        index = {name: k for k, name in enumerate(self.teachers)}
        labels = [index.get(str(rollout.domain), len(index)) for rollout in batch.rollouts]
        return torch.tensor(labels, device=weights.device)[:, None].expand(at.mask.shape)


def _spreads(rule: DomainNormalised, totals: Tensor) -> Tensor:
    """DN-MOPD: σ of all tokens over σ of the group, within limits; 1 where one of them is 0."""
    deviation, of_all = _deviation(totals[1:]), _deviation(totals[1:].sum(dim=1, keepdim=True))
    ratio = torch.where((deviation > 0) & (of_all > 0), of_all / deviation, 1.0)
    return ratio.clamp(rule.low, rule.high)


def _shares(share: Tensor) -> Tensor:
    """Open-MOPD's target shares: equal ones for the groups that are there."""
    present = share > 0
    return torch.where(present, 1 / (present.sum() * share), 1.0)


def _deviation(totals: Tensor) -> Tensor:
    """Standard deviation over tokens from number, sum and squares; 0 of fewer than two."""
    count, mean = totals[0], totals[1] / totals[0].clamp_min(1)
    variance = totals[2] / count.clamp_min(1) - mean.square()
    return torch.where(count > 1, variance.clamp_min(0), 0.0).sqrt()
