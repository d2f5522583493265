"""A real step against the paper's formulas on full float64 logits, one unpadded response at a time."""

import math

import pytest
import replay
import tiny
import torch
from replay import PlainResponse
from torch import Tensor

DOMAINS = [replay.TEACHERS.index(domain) for domain in replay.prompts()["domain"]]


def one_hot(index: int, at: PlainResponse) -> Tensor:
    weights = torch.zeros(at.teacher_logp.shape[:2], dtype=torch.float64)
    weights[index] = 1.0
    return weights


def response_mean(at: PlainResponse, calibrated: Tensor) -> Tensor:
    weights = replay.plain_trust()(at, calibrated)
    return weights.mean(dim=1, keepdim=True).expand_as(weights)


RULES = {
    "trust": replay.plain_trust(),
    "response_level": response_mean,
    "uniform": lambda at, calibrated: torch.full_like(calibrated, 1 / 3),
    "routed": lambda at, calibrated: one_hot(DOMAINS[at.row], at),
    "single": lambda at, calibrated: one_hot(replay.TEACHERS.index("code"), at),
}


def likelihood(at: PlainResponse) -> Tensor:
    return torch.where(at.candidate_ids == at.sampled_ids.unsqueeze(-1), at.teacher_logp.exp(), 0.0).sum(dim=-1)


def trust_or_uniform(at: PlainResponse, calibrated: Tensor) -> Tensor:
    """Where no teacher has a score, all have the same weight."""
    return torch.where((calibrated == 0).all(dim=0), 1 / 3, replay.plain_trust()(at, calibrated))


SCORES = {
    "likelihood": likelihood,
    "negative_entropy": lambda at: math.log(replay.CANDIDATES) + (at.teacher_logp.exp() * at.teacher_logp).sum(dim=-1),
    "teacher_student_kl": lambda at: (at.teacher_logp.exp() * (at.teacher_logp - at.student_logp)).sum(dim=-1),
}


def check(step: replay.Run, expected: replay.Plain) -> None:
    assert step.loss == pytest.approx(expected.loss, rel=1e-5)
    assert replay.difference(expected.gradient, step.gradient) < 1e-5


@pytest.mark.parametrize("rule", RULES)
def test_a_steps_loss_and_gradient_are_the_papers(rule, tmp_path):
    step = replay.run(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=2, **replay.RULES[rule])
    check(step, replay.plain_objective(tiny.model(), list(replay.specialists().values()), RULES[rule]))


@pytest.mark.parametrize("score", SCORES)
def test_a_steps_loss_and_gradient_are_the_papers_by_any_score(score, tmp_path):
    step = replay.run(tmp_path, score=score)
    teachers = list(replay.specialists().values())
    check(step, replay.plain_objective(tiny.model(), teachers, trust_or_uniform, SCORES[score]))
    without_score = step.logs[0]["candidates/degenerate_tokens"]
    assert 0 < without_score < sum(replay.LENGTHS) if score == "likelihood" else without_score == 0


def test_one_micro_batch_counts_by_its_share_of_the_responses(tmp_path):
    """Three responses of which one is empty, one by one: each loss is its response's mean over the two that are not."""
    lengths = (4, 0, replay.LONGEST)
    step = replay.run(tmp_path, lengths=lengths, per_device_train_batch_size=1, gradient_accumulation_steps=3)
    teachers = list(replay.specialists().values())
    expected = replay.plain_objective(tiny.model(), teachers, replay.plain_trust(), lengths=lengths)
    check(step, expected)
    assert sorted(step.losses)[0] == 0.0 and len(step.losses) == 3
    assert sum(step.losses) == pytest.approx(expected.loss, rel=1e-5)
