"""w: the allocation rules. All of them share one token's supervision; trust does so by calibrated scores."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import assert_close, batches, cases, tensor
from hypothesis import given
from hypothesis import strategies as st

from trustmopd.method import (
    degenerate_tokens,
    random_weights,
    response_level,
    routed_weights,
    single_weights,
    trust_weights,
    uniform_weights,
)

pytestmark = pytest.mark.unit

MASK_DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def positive_scores(case):
    return case.rng.uniform(0.01, 8.0, case.teacher_logits.shape[:-1])


@given(case=cases(), gamma=st.sampled_from([0.5, 1.0, 3.0, 7.0, 9.0]), calibrated=st.booleans())
def test_trust_weights_agree_with_plain_powers_at_any_shape(case, gamma, calibrated):
    scores, mu = positive_scores(case), case.some_mu() if calibrated else None
    weights = trust_weights(tensor(scores), None if mu is None else tensor(mu), gamma)
    assert_close(weights, oracle.trust_weights(scores, mu, gamma))
    assert_close(weights.sum(dim=0), np.ones(scores.shape[1:]))


@given(case=cases())
def test_trust_weights_are_right_to_single_precision_in_float32(case):
    scores, mu = positive_scores(case), case.some_mu()
    weights = trust_weights(tensor(scores, torch.float32), tensor(mu), 7.0)
    assert weights.dtype == torch.float32
    assert_close(weights, oracle.trust_weights(scores, mu, 7.0), rtol=2e-5, atol=1e-6)


def test_trust_weights_by_hand_prefer_the_teacher_that_exceeds_its_own_habit():
    scores, mu = torch.tensor([6.0, 4.0], dtype=torch.float64), torch.tensor([6.0, 2.0], dtype=torch.float64)
    assert_close(trust_weights(scores, mu, 3.0), [1 / 9, 8 / 9])
    assert_close(trust_weights(scores, None, 1.0), [0.6, 0.4])


@given(case=cases(), factor=st.floats(1e-3, 1e3))
def test_scaling_a_teachers_scores_and_its_mu_together_changes_no_weight(case, factor):
    scores, mu = positive_scores(case), case.some_mu()
    scaled_scores, scaled_mu = scores.copy(), mu.copy()
    scaled_scores[-1] *= factor
    scaled_mu[-1] *= factor
    assert_close(
        trust_weights(tensor(scaled_scores), tensor(scaled_mu), 7.0), trust_weights(tensor(scores), tensor(mu), 7.0)
    )


@given(case=cases(teachers=st.integers(2, 5)))
def test_permuting_the_teachers_permutes_their_weights(case):
    scores, mu, order = positive_scores(case), case.some_mu(), case.rng.permutation(case.num_teachers)
    permuted = trust_weights(tensor(scores[order]), tensor(mu[order]), 7.0)
    assert_close(permuted, trust_weights(tensor(scores), tensor(mu), 7.0)[torch.tensor(order)])


@given(case=cases())
def test_as_gamma_goes_to_zero_positive_scores_give_uniform_weights(case):
    weights = trust_weights(tensor(positive_scores(case)), tensor(case.some_mu()), 1e-12)
    assert_close(weights, np.full(weights.shape, 1 / case.num_teachers), atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [1e4, 1e9, 1e30])
def test_a_huge_gamma_gives_all_weight_to_the_best_teacher_and_shares_it_on_a_tie(dtype, gamma):
    scores = torch.tensor([[1e-5, 3.0, 2e6], [2e-5, 3.0, 1e6]], dtype=dtype)
    assert trust_weights(scores, None, gamma).tolist() == [[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]]


def test_weights_carry_no_gradient_even_if_the_scores_require_one():
    scores = torch.tensor([[1.0], [2.0]], requires_grad=True)
    assert not trust_weights(scores, torch.ones(2, requires_grad=True), 7.0).requires_grad
    weights = torch.full((2, 1, 3), 0.5, requires_grad=True)
    assert not response_level(weights, torch.ones(1, 3)).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_teacher_that_scores_zero_gets_exactly_nothing(dtype):
    weights = trust_weights(torch.tensor([0.0, 1.0, 1.0], dtype=dtype), torch.ones(3, dtype=dtype), 7.0)
    assert weights.tolist() == [0.0, 0.5, 0.5]


@pytest.mark.parametrize("num_teachers", [1, 2, 3, 5])
def test_where_every_teacher_scores_zero_the_weights_are_uniform_and_the_token_counts_as_degenerate(num_teachers):
    scores = torch.ones(num_teachers, 2, 3)
    scores[:, 0, 1] = 0.0
    scores[0, 1, 2] = 0.0  # one silent teacher in a pool of several is no degenerate token
    weights = trust_weights(scores, torch.arange(1.0, num_teachers + 1), 7.0)
    assert_close(weights[:, 0, 1], np.full(num_teachers, 1 / num_teachers), rtol=1e-7)
    expected = torch.zeros(2, 3, dtype=torch.bool)
    expected[0, 1] = True
    expected[1, 2] = num_teachers == 1
    assert torch.equal(degenerate_tokens(scores), expected)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_seventh_powers_of_extreme_scores_neither_underflow_nor_overflow(size):
    weights = trust_weights(torch.tensor([size, 2 * size]), torch.ones(2), 7.0)
    assert_close(weights, [1 / 129, 128 / 129], rtol=1e-4)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_mu_that_cannot_divide_is_refused(wrong):
    with pytest.raises(ValueError, match=r"mu = \[1\.0, "):
        trust_weights(torch.ones(2, 3), torch.tensor([1.0, wrong]), 7.0)


@pytest.mark.parametrize("gamma", [0.0, -7.0, math.nan, math.inf])
def test_a_gamma_that_is_not_a_positive_number_is_refused(gamma):
    with pytest.raises(ValueError, match=f"gamma = {gamma}"):
        trust_weights(torch.ones(2, 3), torch.ones(2), gamma)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)])
def test_uniform_and_single_weights_have_the_asked_shape_and_sum_to_one(shape):
    uniform = uniform_weights(4, shape, dtype=torch.float64)
    assert_close(uniform, np.full((4, *shape), 0.25))
    assert uniform.dtype == torch.float64
    single = single_weights(4, shape, 2)
    assert single.dtype == torch.float32
    assert_close(single, np.stack([np.full(shape, float(k == 2)) for k in range(4)]))


@pytest.mark.parametrize("index", [-1, 3, 17])
def test_a_single_teacher_outside_the_pool_is_refused_with_the_valid_range(index):
    with pytest.raises(ValueError, match=rf"{index}\b.*\b3\b.*\b0\b.*\b2\b"):
        single_weights(3, (2,), index)


def test_routed_weights_follow_each_responses_label_at_all_its_tokens():
    weights = routed_weights(3, torch.tensor([2, 0, 2, 1]), 5, dtype=torch.float64)
    assert weights.shape == (3, 4, 5)
    for response, label in enumerate([2, 0, 2, 1]):
        for teacher in range(3):
            assert weights[teacher, response].tolist() == [float(teacher == label)] * 5
    assert routed_weights(3, torch.zeros(0, dtype=torch.int64), 5).shape == (3, 0, 5)


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0]])
def test_a_label_outside_the_pool_is_refused(labels):
    with pytest.raises(ValueError, match=r"\b3\b.*\b0\b.*\b2\b"):
        routed_weights(3, torch.tensor(labels), 4)


@pytest.mark.parametrize("num_teachers", [2, 3, 5])
def test_random_weights_have_the_moments_of_a_flat_dirichlet(num_teachers):
    tokens = 40_000
    weights = random_weights(num_teachers, (tokens,), seeded(0), dtype=torch.float64).numpy()
    np.testing.assert_allclose(weights.sum(axis=0), 1.0, atol=1e-12)
    assert weights.min() >= 0
    covariance = (num_teachers * np.eye(num_teachers) - 1) / (num_teachers**2 * (num_teachers + 1))
    np.testing.assert_allclose(weights.mean(axis=1), 1 / num_teachers, atol=5 * np.sqrt(covariance[0, 0] / tokens))
    np.testing.assert_allclose(np.cov(weights), covariance, atol=0.03 * covariance[0, 0])
    below = (weights < 0.1).mean(axis=1)  # a flat Dirichlet's entries are Beta(1, K - 1)
    np.testing.assert_allclose(below, 1 - 0.9 ** (num_teachers - 1), atol=0.01)
    neighbours = np.corrcoef(weights[0, :-1], weights[0, 1:])[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(tokens)


@pytest.mark.parametrize("num_teachers", [1, 2, 3, 5])
def test_random_weights_of_the_first_tokens_do_not_depend_on_how_many_follow(num_teachers):
    whole = random_weights(num_teachers, (300,), seeded(3))
    for tokens in (1, 2, 5, 15, 16, 17, 33, 299):
        assert torch.equal(random_weights(num_teachers, (tokens,), seeded(3)), whole[:, :tokens])


def test_random_weights_are_fixed_by_their_generator_and_leave_the_global_one_alone():
    before = torch.get_rng_state()
    first = random_weights(3, (2, 4), seeded(5))
    assert first.shape == (3, 2, 4)
    assert first.dtype == torch.float32
    assert torch.equal(first, random_weights(3, (2, 4), seeded(5)))
    assert not torch.equal(first, random_weights(3, (2, 4), seeded(6)))
    assert torch.equal(torch.get_rng_state(), before)


@given(case=batches())
def test_response_level_weights_agree_with_the_oracle_and_sum_to_one(case):
    weights = case.some_weights()
    levelled = response_level(tensor(weights), torch.tensor(case.mask))
    assert_close(levelled, oracle.response_level(weights, case.mask))
    assert_close(levelled.sum(dim=0), np.ones(case.mask.shape))


@pytest.mark.parametrize("dtype", MASK_DTYPES)
def test_response_level_ignores_what_stands_at_padded_positions_for_any_mask_dtype(dtype):
    weights = torch.tensor([[[0.25, 0.75, math.nan]], [[0.75, 0.25, math.nan]]], dtype=torch.float64)
    levelled = response_level(weights, torch.tensor([[1, 1, 0]]).to(dtype))
    assert_close(levelled, np.full((2, 1, 3), 0.5))


def test_an_empty_response_gets_uniform_weights():
    weights = torch.tensor([[[0.9, 0.9]], [[0.1, 0.1]]])
    assert response_level(weights, torch.zeros(1, 2)).tolist() == [[[0.5, 0.5]], [[0.5, 0.5]]]
