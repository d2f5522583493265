"""rho: the four score rules against the oracle, and what each of them must not notice."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import ONE_REFERENCE, assert_close, cases, tensor
from hypothesis import given
from hypothesis import strategies as st

from trustmopd.method import displacement, negative_entropy, renormalise, teacher_likelihood, teacher_student_kl

pytestmark = pytest.mark.unit

RULES = ["displacement", "likelihood", "negative_entropy", "teacher_student_kl"]


def score(rule, teacher_logp, reference_logp, student_logp, case):
    ids, sampled = torch.tensor(case.candidate_ids), torch.tensor(case.sampled_ids)
    return {
        "displacement": lambda: displacement(teacher_logp, reference_logp),
        "likelihood": lambda: teacher_likelihood(teacher_logp, ids, sampled),
        "negative_entropy": lambda: negative_entropy(teacher_logp),
        "teacher_student_kl": lambda: teacher_student_kl(teacher_logp, student_logp),
    }[rule]()


def oracle_score(rule, case):
    return {
        "displacement": lambda: oracle.displacement(case.teacher_logp, case.reference_logp),
        "likelihood": lambda: oracle.teacher_likelihood(case.teacher_logp, case.candidate_ids, case.sampled_ids),
        "negative_entropy": lambda: oracle.negative_entropy(case.teacher_logp),
        "teacher_student_kl": lambda: oracle.teacher_student_kl(case.teacher_logp, case.student_logp),
    }[rule]()


def models(case, dtype=torch.float64, requires_grad=False):
    logits = case.teacher_logits, case.reference_logits, case.student_logits
    return [renormalise(tensor(model, dtype, requires_grad)) for model in logits]


@pytest.mark.parametrize("rule", RULES)
@given(case=cases())
def test_every_score_agrees_with_the_oracle_at_any_shape(rule, case):
    assert_close(score(rule, *models(case), case), oracle_score(rule, case))


@pytest.mark.parametrize("rule", RULES)
@given(case=cases(scales=(0.3, 2.0)))
def test_every_score_is_right_to_single_precision_in_float32(rule, case):
    actual = score(rule, *models(case, torch.float32), case)
    assert actual.dtype == torch.float32
    assert_close(actual, oracle_score(rule, case), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("rule", RULES)
@given(case=cases())
def test_scores_are_non_negative_and_carry_no_gradient_even_if_every_model_requires_one(rule, case):
    scores = score(rule, *models(case, requires_grad=True), case)
    assert not scores.requires_grad
    assert bool((scores >= 0).all())


@pytest.mark.parametrize("rule", RULES)
@given(case=cases(), shift=st.floats(-30, 30))
def test_scores_ignore_a_constant_shift_of_any_models_logits(rule, case, shift):
    plain = models(case)
    for shifted in range(3):
        logits = [case.teacher_logits, case.reference_logits, case.student_logits]
        logits[shifted] = logits[shifted] + shift
        moved = [renormalise(tensor(model)) for model in logits]
        assert_close(score(rule, *moved, case), score(rule, *plain, case))


@given(case=cases(), shift=st.floats(-30, 30))
def test_displacement_of_raw_logits_is_the_displacement_of_normalised_ones(case, shift):
    raw = displacement(tensor(case.teacher_logits) + shift, tensor(case.reference_logits))
    assert_close(raw, displacement(*models(case)[:2]))


def test_displacement_by_hand_centres_on_the_plain_mean_of_the_candidates():
    reference_logp = renormalise(torch.tensor([4.0, 1.0, -2.0], dtype=torch.float64))
    teacher_logp = renormalise(torch.tensor([7.0, 1.0, -2.0], dtype=torch.float64))
    assert displacement(teacher_logp[None], reference_logp).item() == pytest.approx(math.sqrt(6), abs=1e-12)


@given(case=cases())
def test_displacement_of_a_teacher_that_equals_its_reference_is_exactly_zero(case):
    teacher_logp, reference_logp, _ = models(case)
    assert bool((displacement(reference_logp.expand_as(teacher_logp), reference_logp) == 0).all())


@given(case=cases(own_references=ONE_REFERENCE))
def test_one_reference_for_all_is_the_same_one_for_each_to_the_bit(case):
    teacher_logp, reference_logp, _ = models(case, torch.float32)
    for_each = torch.stack([reference_logp] * case.num_teachers)
    assert torch.equal(displacement(teacher_logp, for_each), displacement(teacher_logp, reference_logp))


@given(case=cases(candidates=st.just(1)))
def test_a_single_candidate_leaves_nothing_to_score_but_its_certainty(case):
    teacher_logp, reference_logp, student_logp = models(case)
    assert bool((displacement(teacher_logp, reference_logp) == 0).all())
    assert bool((negative_entropy(teacher_logp) == 0).all())
    assert bool((teacher_student_kl(teacher_logp, student_logp) == 0).all())
    ids = torch.tensor(case.candidate_ids)
    assert bool((teacher_likelihood(teacher_logp, ids, ids[..., 0]) == 1).all())


@given(case=cases())
def test_the_likelihoods_of_the_candidates_add_up_to_one(case):
    teacher_logp, ids = models(case)[0], torch.tensor(case.candidate_ids)
    total = sum(teacher_likelihood(teacher_logp, ids, ids[..., v]) for v in range(ids.shape[-1]))
    assert_close(total, np.ones(teacher_logp.shape[:-1]))


@given(case=cases())
def test_a_sampled_token_outside_the_candidates_has_likelihood_zero_for_every_teacher(case):
    teacher_logp, ids = models(case)[0], torch.tensor(case.candidate_ids)
    outside = torch.full(ids.shape[:-1], int(ids.max()) + 1)
    assert bool((teacher_likelihood(teacher_logp, ids, outside) == 0).all())


@pytest.mark.parametrize("num_candidates", [1, 2, 3, 7, 40, 128, 1000])
def test_negative_entropy_runs_from_zero_for_an_undecided_to_log_c_for_a_decided_teacher(num_candidates):
    undecided = renormalise(torch.full((1, num_candidates), 0.7))
    assert 0 <= negative_entropy(undecided).item() < 1e-5
    decided = torch.full((1, num_candidates), -math.inf)
    decided[0, 0] = 0.0
    assert negative_entropy(decided).item() == pytest.approx(math.log(num_candidates), rel=1e-6)


def test_teacher_student_divergence_weighs_by_the_teacher_not_by_the_student():
    teacher_logp = torch.tensor([[0.9, 0.1]], dtype=torch.float64).log()
    student_logp = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    expected = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    assert teacher_student_kl(teacher_logp, student_logp).item() == pytest.approx(expected, abs=1e-12)


@given(case=cases())
def test_rounding_never_makes_a_divergence_negative_where_teacher_and_student_nearly_agree(case):
    student_logits = tensor(case.student_logits, torch.float32)
    nearly = torch.stack([student_logits + offset for offset in (0.0, 0.1, 3.3, 11.7)])
    assert bool((teacher_student_kl(renormalise(nearly), renormalise(student_logits)) >= 0).all())
