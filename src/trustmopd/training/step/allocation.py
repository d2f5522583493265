"""The allocation rules: one function for each row of `recipe.rules.RULES`, with its name, which makes the rule of a
batch."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from trustmopd import method
from trustmopd.method import CandidateState, random_weights, routed_weights, single_weights, uniform_weights
from trustmopd.method.objective import AllocationRule
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.step.batch import Batch


def allocation_rule(args: TrustMOPDConfig, teachers: Sequence[str], batch: Batch) -> AllocationRule:
    """Rules have no state. Weights depend only on configuration, rollout and position, so neither a resume nor the
    split into processes and micro-batches changes them."""
    if callable(args.allocation):
        return args.allocation
    return _RULES[args.rules.allocation.rule](args, teachers, batch)


def trust(args: TrustMOPDConfig, teachers: Sequence[str], batch: Batch) -> AllocationRule:
    return method.trust(args.gamma)


def uniform(args: TrustMOPDConfig, teachers: Sequence[str], batch: Batch) -> AllocationRule:
    return lambda at, scores: uniform_weights(len(teachers), tuple(at.mask.shape), device=at.mask.device)


def random(args: TrustMOPDConfig, teachers: Sequence[str], batch: Batch) -> AllocationRule:
    def allocate(at: CandidateState, scores: Tensor | None) -> Tensor:
        generators = [Generator().manual_seed(derived_seed(rollout.draw)) for rollout in batch.rollouts]
        draws = [random_weights(len(teachers), (at.mask.shape[1],), generator) for generator in generators]
        return torch.stack(draws, dim=1).to(at.teacher_logp.device)

    return allocate


def single(args: TrustMOPDConfig, teachers: Sequence[str], batch: Batch) -> AllocationRule:
    index = teachers.index(str(args.single_teacher))
    return lambda at, scores: single_weights(len(teachers), tuple(at.mask.shape), index, device=at.mask.device)


def routed(args: TrustMOPDConfig, teachers: Sequence[str], batch: Batch) -> AllocationRule:
    labels = torch.tensor([rollout.teacher for rollout in batch.rollouts])
    return lambda at, scores: routed_weights(len(teachers), labels.to(at.mask.device), at.mask.shape[1])


def argmax(args: TrustMOPDConfig, teachers: Sequence[str], batch: Batch) -> AllocationRule:
    return lambda at, scores: method.largest_weights(_scored(scores))


def directed(args: TrustMOPDConfig, teachers: Sequence[str], batch: Batch) -> AllocationRule:
    def allocate(at: CandidateState, scores: Tensor | None) -> Tensor:
        inner, _ = method.teaching_agreement(at.teacher_logp, _referenced(at), at.student_logp.detach())
        return method.directed_weights(method.trust_weights(_scored(scores), None, args.gamma, at.speaks), inner)

    return allocate


def expert_align(args: TrustMOPDConfig, teachers: Sequence[str], batch: Batch) -> AllocationRule:
    top = _own(args).top

    def allocate(at: CandidateState, scores: Tensor | None) -> Tensor:
        student = at.student_logp.detach()
        logp = [at.teacher_logp, _referenced(at), student]
        if top is not None and top < student.shape[-1]:
            likeliest = student.topk(top, dim=-1).indices
            logp = [each.gather(-1, likeliest.expand(*each.shape[:-1], top)) for each in logp]
        return method.expert_align_weights(*logp)

    return allocate


def entropy(args: TrustMOPDConfig, teachers: Sequence[str], batch: Batch) -> AllocationRule:
    return lambda at, scores: method.entropy_weights(at.teacher_logp, _own(args).temperature)


def novelty(args: TrustMOPDConfig, teachers: Sequence[str], batch: Batch) -> AllocationRule:
    own = _own(args)
    return lambda at, scores: method.novelty_weights(
        at.teacher_logp, at.student_logp.detach(), own.js_temperature, own.temperature
    )


def consensus(args: TrustMOPDConfig, teachers: Sequence[str], batch: Batch) -> AllocationRule:
    by_label, nats = routed(args, teachers, batch), _own(args).nats
    return lambda at, scores: method.consensus_weights(
        at.teacher_logp, at.student_logp.detach(), by_label(at, scores), nats
    )


def _own(args: TrustMOPDConfig) -> Any:
    """The parameters of the rule."""
    return args.rules.allocation


def _scored(scores: Tensor | None) -> Tensor:
    if scores is None:
        raise ValueError("this rule needs scores, but there are none. Pass a score rule.")
    return scores


def _referenced(at: CandidateState) -> Tensor:
    if at.reference_logp is None:
        raise ValueError("this rule compares with the reference, but reference_logp is None. Score the reference.")
    return at.reference_logp


_RULES = {
    rule.__name__: rule
    for rule in (
        *(trust, uniform, random, single, routed),
        *(argmax, directed, expert_align, entropy, novelty, consensus),
    )
}


def derived_seed(*parts: int | str) -> int:
    """A different seed for each combination of `parts`."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=False) >> 1
