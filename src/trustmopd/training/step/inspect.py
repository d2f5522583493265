"""What the frozen policies think of the recorded rollouts, over their whole vocabulary: overlap, mass, conflict.

Full logits are cheap for a few rollouts of some steps, and nothing of them is kept."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trustmopd.method import Objective
from trustmopd.training.step.batch import Batch
from trustmopd.training.step.candidates import ScoredCandidates

#: Of each policy's likeliest tokens, those that are compared.
TOP = 16
#: A token is cancelled if its teachers are this far from the reference, have the weight between them (as many as this,
#: effectively), and their target is less than this share of their distance away from it.
_MOVED, _SPLIT, _STAYS = 0.05, 1.5, 0.25


def inspected(scored: ScoredCandidates, result: Objective, batch: Batch, teachers: Sequence[str]) -> dict[str, Tensor]:
    """The values of each metric at the tokens of recorded rollouts; empty in a micro-batch without any, so that all
    processes have the same metrics. A teacher speaks of the rows that it was asked about."""
    assert batch.answers is not None
    at = scored.at
    recorded = torch.tensor([rollout.recorded for rollout in batch.rollouts], device=batch.mask.device)
    tokens = (batch.mask != 0) & recorded[:, None]
    metrics = {"target_entropy": _entropy(result.target_logp[tokens])}
    everyone = tokens
    for k, name in enumerate(teachers):
        answer = batch.answers[name]
        asked = torch.tensor([row in answer.rows for row in batch.asked], device=tokens.device)
        of_rows = tokens & asked[:, None]
        everyone = everyone & of_rows
        rows = [batch.asked[row] for row in of_rows.any(dim=1).nonzero()[:, 0].tolist()]
        student, teacher = at.student_logp.detach()[of_rows], at.teacher_logp[k][of_rows]
        metrics[f"teacher_entropy/{name}"] = _entropy(teacher)
        metrics[f"overlap/{name}"] = metrics[f"teacher_mass/{name}"] = teacher.new_zeros(0)
        if rows:
            ids = at.candidate_ids[of_rows]
            width = min(TOP, ids.shape[-1])
            top = answer.top(rows, width)
            likeliest = ids.gather(-1, student.topk(width, dim=-1).indices)
            shared = (top.ids.to(ids.device).unsqueeze(-1) == likeliest.unsqueeze(-2)).any(dim=-1)
            metrics[f"overlap/{name}"] = shared.float().mean(dim=-1)
            outside = top.log_partition.to(ids.device)
            metrics[f"teacher_mass/{name}"] = (answer.logits_at(rows, ids).logsumexp(dim=-1) - outside).exp()
    if len(teachers) > 1:
        opinions = at.teacher_logp[:, everyone]
        metrics["conflict/spread"] = spread(at.student_logp.detach()[everyone], opinions)
        if at.reference_logp is not None:
            reference = at.reference_logp.expand_as(at.teacher_logp)[:, everyone]
            weights, target = result.weights[:, everyone], result.target_logp[everyone]
            metrics["conflict/cancelled"] = cancelled(opinions, reference, weights, target)
    return metrics


def spread(student_logp: Tensor, teacher_logp: Tensor) -> Tensor:
    """Standard deviation over teachers of their log-probability of the student's first choice."""
    first = student_logp.argmax(dim=-1, keepdim=True)
    opinions = teacher_logp.gather(-1, first.expand(*teacher_logp.shape[:-1], 1))[..., 0]
    return (opinions - opinions.mean(dim=0)).square().mean(dim=0).sqrt()


def cancelled(teacher_logp: Tensor, reference_logp: Tensor, weights: Tensor, target_logp: Tensor) -> Tensor:
    """At the tokens where teachers have moved: 1 if several have, and their target stays at the reference; else 0."""
    split = torch.special.entr(weights).sum(dim=0).exp() >= _SPLIT
    reference = reference_logp.exp()
    teachers = (weights * (teacher_logp.exp() - reference).abs().sum(dim=-1) / 2).sum(dim=0)
    target = (weights * (target_logp.exp() - reference).abs().sum(dim=-1) / 2).sum(dim=0)
    return (split & (target < _STAYS * teachers))[teachers > _MOVED].float()


def _entropy(logp: Tensor) -> Tensor:
    return torch.special.entr(logp.exp()).sum(dim=-1)
