"""The configuration's allocation rule, bound to one micro-batch: its step, rows and labels."""

import hashlib

import torch
from torch import Generator, Tensor

from trustmopd.method import CandidateState, random_weights, routed_weights, single_weights, trust, uniform_weights
from trustmopd.method.objective import AllocationRule
from trustmopd.training.config import TrustMOPDConfig


def allocation_rule(
    args: TrustMOPDConfig, teachers: list[str], *, step: int, rows: Tensor, labels: Tensor | None
) -> AllocationRule:
    """Stateless: the weights of a token follow from the configuration, the step, the dataset row and the position,
    so neither a resume nor the split over processes and micro-batches can change them."""
    rule = args.allocation
    if callable(rule):
        return rule
    if rule == "trust":
        return trust(args.gamma)
    if rule == "random":
        return lambda at, _: _random(at, args.seed, step, rows)
    if rule == "routed":
        assert labels is not None
        return lambda at, _: routed_weights(len(at.teacher_logp), labels.to(at.mask.device), at.mask.shape[1])
    if rule == "single":
        index = teachers.index(str(args.single_teacher))
        return lambda at, _: single_weights(len(at.teacher_logp), tuple(at.mask.shape), index, device=at.mask.device)
    if rule != "uniform":
        raise ValueError(f"allocation = {rule!r} is no rule. A rule given as a function is not restored from a file.")
    return lambda at, _: uniform_weights(len(at.teacher_logp), tuple(at.mask.shape), device=at.mask.device)


def _random(at: CandidateState, seed: int, step: int, rows: Tensor) -> Tensor:
    num_teachers, _, num_tokens = at.teacher_logp.shape[:3]
    draws = [random_weights(num_teachers, (num_tokens,), token_generator(seed, step, row)) for row in rows.tolist()]
    return torch.stack(draws, dim=1).to(at.teacher_logp.device)


def token_generator(seed: int, step: int, row: int) -> Generator:
    return Generator().manual_seed(derived_seed(seed, step, row))


def derived_seed(*parts: int) -> int:
    """A seed of its own for each combination of `parts`."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=False) >> 1
