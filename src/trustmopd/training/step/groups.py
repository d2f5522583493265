"""Who gets a step's loss and gradient: metrics by domain, by leading teacher, and by position in the response.

Labels only sort the tokens here. A rule that goes by no labels never sees them.
"""

from collections.abc import Sequence

import torch
from accelerate import Accelerator
from torch import Tensor

from trustmopd.method import Objective
from trustmopd.runs.columns import GROUPS, OTHERS
from trustmopd.training.step.batch import Batch
from trustmopd.training.step.candidates import ScoredCandidates

_QUARTERS = 4
_SHARES = ("prompts", "tokens", "loss", "gradient")


class GroupTotals:
    """Sums over the tokens of each group, ``[kind, sum, group]``. `teachers` are all of the run, `longest` is the limit
    of a response."""

    def __init__(self, teachers: Sequence[str], longest: int, device: torch.device):
        self.longest = longest
        groups = [*teachers, OTHERS]
        quarters = [str(quarter + 1) for quarter in range(_QUARTERS)]
        self._names = {**dict.fromkeys(GROUPS, groups), "position": quarters}
        self._totals = torch.zeros(3, 6, max(len(groups), _QUARTERS), dtype=torch.float64, device=device)

    def note(
        self,
        scored: ScoredCandidates,
        result: Objective,
        batch: Batch,
        asked: Sequence[str],
        multipliers: Tensor | None = None,
    ) -> None:
        """Add a micro-batch. `asked` are the teachers that weights are of, `multipliers` those of the emphasis."""
        valid = batch.mask != 0
        lengths = valid.sum(dim=1, keepdim=True).clamp_min(1)
        share = (1 / lengths.double()).expand(valid.shape)  # of a response: what a token counts in the loss
        gap, slope = _gap_and_slope(scored, result)
        slope = slope if multipliers is None else slope * multipliers
        clipped = (batch.attended.sum(dim=1, keepdim=True) >= self.longest) * share
        at_tokens = (share, valid, result.token_loss.detach() * share, slope * share, clipped, gap)
        # Zeros in place of what does not count: to select what does, a GPU would have to wait.
        measured = torch.stack([torch.where(valid, values, 0).double() for values in at_tokens]).flatten(1)
        quarters = ((valid.cumsum(dim=1) - 1) * _QUARTERS // lengths).clamp_min(0)
        for kind, groups in enumerate((self._domains(batch), self._leaders(result.weights, asked), quarters)):
            self._totals[kind].index_add_(1, groups.flatten(), measured)

    def finish(self, accelerator: Accelerator) -> dict[str, float]:
        """Over all processes, of the groups that have tokens: shares of prompts, tokens, loss and gradient; mean
        length, share of clipped responses, and mean gap. Nothing where all tokens are in one group."""
        totals = accelerator.reduce(self._totals, "sum")
        self._totals = torch.zeros_like(self._totals)
        metrics: dict[str, float] = {}
        for kind, of_kind in zip(self._names, totals, strict=True):
            shares = of_kind / of_kind.sum(dim=1, keepdim=True).clamp_min(1e-30)
            groups = zip(self._names[kind], of_kind.T.tolist(), shares.T.tolist(), strict=False)
            present = [group for group in groups if group[1][0]]
            for name, (prompts, tokens, _, _, clipped, gap), of_all in present if len(present) > 1 else ():
                metrics[f"{kind}/{name}/gap"] = gap / tokens
                if kind != "position":
                    metrics |= {f"{kind}/{name}/{what}": of_all[row] for row, what in enumerate(_SHARES)}
                    metrics[f"{kind}/{name}/length"] = tokens / prompts
                    metrics[f"{kind}/{name}/clipped"] = clipped / prompts
        return metrics

    def _domains(self, batch: Batch) -> Tensor:
        index = {name: k for k, name in enumerate(self._names["domain"])}
        labels = [index.get(str(rollout.domain), index[OTHERS]) for rollout in batch.rollouts]
        return torch.tensor(labels, device=batch.mask.device)[:, None].expand(batch.mask.shape)

    def _leaders(self, weights: Tensor, asked: Sequence[str]) -> Tensor:
        """The teacher with the largest weight; a tie has no leader."""
        names = self._names["leader"]
        places = torch.tensor([names.index(name) for name in asked], device=weights.device)
        alone = (weights == weights.amax(dim=0)).sum(dim=0) == 1
        return torch.where(alone, places[weights.argmax(dim=0)], len(names) - 1)


def _gap_and_slope(scored: ScoredCandidates, result: Objective) -> tuple[Tensor, Tensor]:
    """At each token, half the sum of |student − target|, and the norm of the loss's derivative at the candidates'
    logits: of reverse KL with softmax p it is p · (log p − log q − KL)."""
    student_logp = scored.at.student_logp.detach()
    student, apart = student_logp.exp(), student_logp - result.target_logp
    gap = (student - result.target_logp.exp()).abs().sum(dim=-1) / 2
    slope = (student * (apart - (student * apart).sum(dim=-1, keepdim=True))).norm(dim=-1)
    taught = (result.weights != 0).any(dim=0)
    return gap * taught, slope * taught
