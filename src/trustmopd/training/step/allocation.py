"""The allocation rules for one micro-batch: one function for each row of `recipe.rules.RULES`, with its name."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from trustmopd import method
from trustmopd.method import CandidateState, random_weights, routed_weights, single_weights, uniform_weights
from trustmopd.method.objective import AllocationRule
from trustmopd.training.config import TrustMOPDConfig


@dataclass(frozen=True)
class MicroBatch:
    """What a rule may use besides candidates and scores. `rows` are the prompts' places in the dataset; `labels` are
    the indices of their own teachers."""

    args: TrustMOPDConfig
    teachers: Sequence[str]
    step: int
    rows: Tensor
    labels: Tensor | None


def allocation_rule(given: MicroBatch) -> AllocationRule:
    """Rules have no state. Weights depend only on configuration, step, dataset row and position, so neither a resume
    nor the split into processes and micro-batches changes them."""
    if callable(given.args.allocation):
        return given.args.allocation
    weights = _RULES[given.args.rules.allocation.rule]
    return lambda at, scores: weights(at, scores, given)


def trust(at: CandidateState, scores: Tensor | None, given: MicroBatch) -> Tensor:
    return method.trust(given.args.gamma)(at, scores)


def uniform(at: CandidateState, scores: Tensor | None, given: MicroBatch) -> Tensor:
    return uniform_weights(len(at.teacher_logp), tuple(at.mask.shape), device=at.mask.device)


def random(at: CandidateState, scores: Tensor | None, given: MicroBatch) -> Tensor:
    num_teachers, _, num_tokens = at.teacher_logp.shape[:3]
    seeds = [derived_seed(given.args.seed, given.step, row) for row in given.rows.tolist()]
    draws = [random_weights(num_teachers, (num_tokens,), Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(draws, dim=1).to(at.teacher_logp.device)


def single(at: CandidateState, scores: Tensor | None, given: MicroBatch) -> Tensor:
    index = given.teachers.index(str(given.args.single_teacher))
    return single_weights(len(at.teacher_logp), tuple(at.mask.shape), index, device=at.mask.device)


def routed(at: CandidateState, scores: Tensor | None, given: MicroBatch) -> Tensor:
    assert given.labels is not None
    return routed_weights(len(at.teacher_logp), given.labels.to(at.mask.device), at.mask.shape[1])


_RULES = {rule.__name__: rule for rule in (trust, uniform, random, single, routed)}


def derived_seed(*parts: int) -> int:
    """A different seed for each combination of `parts`."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=False) >> 1
