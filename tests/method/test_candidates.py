"""The candidate set: the student's C likeliest tokens, and distributions over them alone."""

import numpy as np
import oracle
import pytest
import torch
from cases import CANDIDATES, assert_close, cases, tensor
from hypothesis import given
from hypothesis import strategies as st

from trustmopd.method import renormalise, top_candidates

pytestmark = pytest.mark.unit


@given(case=cases(candidates=CANDIDATES), data=st.data())
def test_top_candidates_are_distinct_and_no_token_outside_beats_one_inside(case, data):
    logits = case.student_logits
    count = data.draw(st.integers(1, logits.shape[-1]))
    ids = top_candidates(tensor(logits), count)
    assert ids.shape == (*logits.shape[:-1], count)
    for at in np.ndindex(logits.shape[:-1]):
        chosen = set(ids[at].tolist())
        assert len(chosen) == count
        outside = [logits[(*at, v)] for v in range(logits.shape[-1]) if v not in chosen]
        assert min(logits[(*at, v)] for v in chosen) >= max(outside, default=-np.inf)


def test_equal_logits_at_the_border_give_distinct_candidates_of_the_right_value():
    ids = top_candidates(torch.tensor([1.0, 5.0, 1.0, 1.0, 5.0]), 3).tolist()
    assert len(set(ids)) == 3
    assert {1, 4} < set(ids)


@pytest.mark.parametrize("count", [0, -1, 9])
def test_a_candidate_count_that_does_not_fit_the_vocabulary_is_refused_with_both_numbers(count):
    with pytest.raises(ValueError, match=rf"num_candidates = {count}\b.*\b8\b"):
        top_candidates(torch.zeros(2, 8), count)


def test_the_choice_of_candidates_carries_no_gradient():
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert not top_candidates(logits, 2).requires_grad


@given(case=cases())
def test_renormalised_log_probabilities_agree_with_the_oracle_and_sum_to_one(case):
    logp = renormalise(tensor(case.student_logits))
    assert_close(logp, case.student_logp)
    assert_close(logp.exp().sum(dim=-1), np.ones(logp.shape[:-1]))


@given(case=cases())
def test_the_gradient_of_renormalisation_agrees_with_the_oracle(case):
    logits = tensor(case.student_logits, requires_grad=True)
    upstream = case.rng.standard_normal(logits.shape)
    renormalise(logits).backward(tensor(upstream))
    expected = upstream - np.exp(case.student_logp) * upstream.sum(axis=-1, keepdims=True)
    assert_close(logits.grad, expected)


@given(case=cases(), shift=st.floats(-50, 50))
def test_a_models_log_partition_cancels_in_renormalisation(case, shift):
    logits = tensor(case.student_logits)
    assert_close(renormalise(logits + shift), renormalise(logits))


@given(case=cases())
def test_renormalising_what_was_normalised_over_the_whole_vocabulary_is_the_same_as_normalising_logits(case):
    logits = tensor(case.student_logits)
    ids = top_candidates(logits, max(1, logits.shape[-1] // 2))
    from_logp = renormalise(torch.log_softmax(logits, dim=-1).gather(-1, ids))
    assert_close(from_logp, oracle.log_normalise(np.take_along_axis(case.student_logits, ids.numpy(), axis=-1)))


def test_huge_logits_neither_overflow_nor_underflow_in_float32():
    logp = renormalise(torch.tensor([1e4, 1e4 - 1.0, -1e4]))
    assert bool(logp.isfinite().all())
    assert_close(logp, [-0.31326169, -1.31326169, -2e4 - 0.31326169], rtol=1e-5)
