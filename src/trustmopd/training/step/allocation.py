"""The allocation rules: one function for each row of `recipe.rules.RULES`, with its name, which makes the rule of a
batch."""

import hashlib
from collections.abc import Sequence

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


_RULES = {rule.__name__: rule for rule in (trust, uniform, random, single, routed)}


def derived_seed(*parts: int | str) -> int:
    """A different seed for each combination of `parts`."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=False) >> 1
