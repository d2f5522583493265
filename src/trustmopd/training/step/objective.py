"""The objective of a batch, from its four parts, and its loss."""

import torch
from torch import Tensor

from trustmopd.heads import trust_objective
from trustmopd.method import SCORES, Objective, objective, response_means
from trustmopd.method.objective import even
from trustmopd.training.step.allocation import allocation_rule
from trustmopd.training.step.batch import Batch, StepContext
from trustmopd.training.step.candidates import ScoredCandidates
from trustmopd.training.step.target import target_rule


def objective_of(
    context: StepContext, scored: ScoredCandidates, batch: Batch, mu: Tensor | None, step: int = 0
) -> Objective:
    """`step` counts those before this one."""
    args = context.args
    if args.is_papers_own:
        return trust_objective(scored.at, mu, args.gamma)
    return objective(
        scored.at,
        allocate=allocation_rule(args, context.pool.teachers, batch),
        score=None if not args.scored else args.score if callable(args.score) else SCORES[args.score],
        mu=mu,
        granularity=args.granularity,
        target=target_rule(args.rules.target, step),
        emphasis=context.emphasis.of(batch) if context.emphasis else even,
    )


def loss_of(result: Objective, batch: Batch, num_responses: Tensor | float, step: int) -> Tensor:
    """Each response's token mean, summed: over `num_responses`, those of the whole step, it is the mean over
    responses."""
    loss = response_means(result.token_loss, batch.mask != 0).sum() / num_responses
    if not bool(loss.isfinite()):
        raise FloatingPointError(
            f"the loss is {loss.item()} at step {step}; training stopped before it reached the student, and the last "
            "checkpoint is complete. Check the score and allocation rules, and the models' dtype."
        )
    return loss


def entropy_of(scored: ScoredCandidates) -> Tensor:
    """The student's entropy over its candidates, summed over the response tokens."""
    return torch.special.entr(scored.at.student_logp.detach()[scored.at.mask != 0].exp()).sum()
