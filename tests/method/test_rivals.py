"""Rules of other papers against their formulas in float64 numpy, one token at a time, and what must not change them."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import ONE_REFERENCE, assert_close, batches, tensor
from hypothesis import given
from hypothesis import strategies as st
from test_objective import state

from trustmopd.method import (
    consensus_weights,
    directed_weights,
    entropy_weights,
    expert_align_weights,
    extrapolated_target,
    largest_weights,
    mixed_target,
    novelty_weights,
    objective,
    renormalise,
    shift_target,
    spread,
    teaching_agreement,
    uniform_weights,
)

pytestmark = pytest.mark.unit

SEVERAL = st.integers(2, 5)
ORACLES = {
    "expert_align": (expert_align_weights, lambda t, r, s: expert_align(t, r, s)),
    "entropy": (lambda t, r, s: entropy_weights(t, 0.3), lambda t, r, s: softmax([-entropy(own) / 0.3 for own in t])),
    "novelty": (lambda t, r, s: novelty_weights(t, s, 0.2, 0.4), lambda t, r, s: novelty(t, s, 0.2, 0.4)),
}


def softmax(values):
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def entropy(logp):
    return -sum(math.exp(entry) * entry for entry in logp)


def expert_align(teachers, reference, student):
    cosines = []
    for k, teacher in enumerate(teachers):
        start = reference[k] if reference.ndim == 2 else reference
        learnt, teaches = teacher - start, teacher - student
        inner = float(learnt @ teaches)
        cosines.append(inner / math.sqrt(learnt @ learnt) / math.sqrt(teaches @ teaches) if inner > 1e-6 else 0.0)
    return [cosine / sum(cosines) if sum(cosines) else 0.0 for cosine in cosines]


def novelty(teachers, student, js_temperature, temperature):
    found = []
    for teacher in teachers:
        mixture = [(math.exp(one) + math.exp(other)) / 2 for one, other in zip(teacher, student, strict=True)]
        divergence = sum(
            math.exp(side) * (side - math.log(both)) / 2
            for logp in (teacher, student)
            for side, both in zip(logp, mixture, strict=True)
        )
        found.append(1 - math.exp(-divergence / js_temperature))
    return softmax([value / temperature for value in found])


def by_token(case, rule):
    reference = case.reference_logp
    weights = np.empty(case.teacher_logp.shape[:-1])
    for at in np.ndindex(case.mask.shape):
        start = reference[(slice(None), *at)] if reference.ndim == case.teacher_logp.ndim else reference[at]
        weights[(slice(None), *at)] = rule(case.teacher_logp[(slice(None), *at)], start, case.student_logp[at])
    return weights


def tensors(case):
    return tensor(case.teacher_logp), tensor(case.reference_logp), tensor(case.student_logp)


@pytest.mark.parametrize("name", ORACLES)
@given(case=batches())
def test_weights_are_those_of_the_formula(name, case):
    rule, formula = ORACLES[name]
    assert_close(rule(*tensors(case)), by_token(case, formula), atol=1e-9)


@pytest.mark.parametrize("name", ORACLES)
@given(case=batches(teachers=SEVERAL))
def test_the_order_of_the_teachers_and_equal_teachers_change_nothing_else(name, case):
    rule = ORACLES[name][0]
    teachers, reference, student = tensors(case)
    flipped = reference.flip(0) if reference.ndim == teachers.ndim else reference
    assert_close(rule(teachers.flip(0), flipped, student), rule(teachers, reference, student).flip(0), atol=1e-12)
    one = reference[0] if reference.ndim == teachers.ndim else reference
    same = rule(teachers[:1].expand_as(teachers), one, student)
    assert_close(same, same[:1].expand_as(same), atol=1e-12)


@pytest.mark.parametrize("name", ORACLES)
@given(case=batches(teachers=st.just(1)))
def test_a_single_teacher_has_all_the_weight_or_the_token_is_masked(name, case):
    weights = ORACLES[name][0](*tensors(case))
    assert set(weights.round(decimals=9).unique().tolist()) <= ({0.0, 1.0} if name == "expert_align" else {1.0})


@given(case=batches(own_references=ONE_REFERENCE))
def test_expert_align_masks_a_token_to_which_no_teacher_has_moved(case):
    teachers, _, student = tensors(case)
    beyond = 2 * teachers[:1] - student  # as a reference: t − r points away from t − s
    assert (expert_align_weights(teachers[:1], beyond, student) == 0).all()
    assert (expert_align_weights(teachers, teachers, student) == 0).all()


@given(case=batches(teachers=SEVERAL))
def test_directed_weights_keep_the_proportions_of_those_that_agree(case):
    teachers, reference, student = tensors(case)
    inner, _ = teaching_agreement(teachers, reference, student)
    weights = torch.rand_like(inner) + 0.1
    kept = directed_weights(weights, inner)
    agrees = inner > 1e-6
    assert (kept[~agrees] == 0).all()
    assert_close(kept * torch.where(agrees, weights, 0).sum(dim=0), torch.where(agrees, weights, 0))


@given(case=batches(teachers=SEVERAL))
def test_consensus_is_the_mean_where_teachers_agree_and_the_label_elsewhere(case):
    teachers, _, student = tensors(case)
    apart = spread(teachers, student)
    for at in np.ndindex(case.mask.shape):
        said = [teacher[case.student_logp[at].argmax()] for teacher in case.teacher_logp[(slice(None), *at)]]
        assert math.isclose(apart[at], max(said) - min(said), abs_tol=1e-12)
    nats = float(apart.median())
    routed = torch.zeros(apart.shape).expand(len(teachers), *apart.shape).clone()
    routed[0] = 1
    weights = consensus_weights(teachers, student, routed, nats)
    assert (weights[:, apart <= nats] == 1 / len(teachers)).all() and (weights[0, apart > nats] == 1).all()


def test_the_largest_score_takes_all_and_equal_ones_share():
    weights = largest_weights(torch.tensor([[3.0, 1.0, 0.0], [1.0, 1.0, 0.0], [2.0, 0.5, 0.0]]))
    assert weights.T.tolist() == [[1, 0, 0], [0.5, 0.5, 0], pytest.approx([1 / 3] * 3)]


@given(case=batches(), factor=st.sampled_from([0.5, 1.0, 1.5, 3.0]))
def test_an_extrapolated_target_is_that_of_the_formula(case, factor):
    weights, reference = case.some_weights(), case.reference_logp
    found = extrapolated_target(tensor(case.teacher_logp), tensor(case.reference_logp), tensor(weights), factor)
    for at in np.ndindex(case.mask.shape):
        logits = 0
        for k, teacher in enumerate(case.teacher_logp):
            start = reference[(k, *at)] if reference.ndim == case.teacher_logp.ndim else reference[at]
            logits = logits + weights[(k, *at)] * (start + factor * (teacher[at] - start))
        assert_close(found[at], oracle.log_normalise(logits[None])[0], atol=1e-9)
    if factor == 1:
        assert_close(found, mixed_target(tensor(case.teacher_logp), tensor(weights)), atol=1e-9)


@given(case=batches(own_references=ONE_REFERENCE))
def test_the_sum_of_shifts_from_a_common_reference_is_uniform_weights_with_factor_k(case):
    teachers, reference, _ = tensors(case)
    uniform = uniform_weights(len(teachers), teachers.shape[1:-1], dtype=torch.float64)
    expected = extrapolated_target(teachers, reference, uniform, len(teachers))
    assert_close(shift_target(teachers, reference, reference), expected, atol=1e-9)
    assert_close(shift_target(teachers, reference.expand_as(teachers), reference), expected, atol=1e-9)
    assert_close(shift_target(teachers, reference, reference, uniform), mixed_target(teachers, uniform), atol=1e-9)


@given(case=batches(teachers=SEVERAL))
def test_a_shift_that_has_no_share_has_no_effect_even_where_it_is_infinite(case):
    teachers, reference, student = tensors(case)
    own = reference if reference.ndim == teachers.ndim else reference.expand_as(teachers)
    teachers[0] = -torch.inf
    shares = torch.ones(teachers.shape[:-1], dtype=torch.float64)
    shares[0] = 0
    assert_close(shift_target(teachers, own, student, shares), shift_target(teachers[1:], own[1:], student))


@given(case=batches())
def test_the_gradient_of_an_extrapolated_loss_is_that_of_finite_differences(case):
    logits = tensor(case.student_logits, requires_grad=True)
    weights = uniform_weights(len(case.teacher_logits), case.mask.shape, dtype=torch.float64)

    def target(at, given):
        return extrapolated_target(at.teacher_logp, at.reference_logp, given, 2.0)

    def loss_of(student_logits):
        at = state(case, student_logits)
        return objective(at, lambda at, scores: weights, target=target).token_loss.sum()

    loss_of(logits).backward()
    direction = torch.randn(logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    step = 1e-6
    with torch.no_grad():
        slope = (loss_of(logits + step * direction) - loss_of(logits - step * direction)) / (2 * step)
    assert_close((logits.grad * direction).sum(), slope, atol=1e-4)
    assert torch.isfinite(renormalise(logits)).all()
