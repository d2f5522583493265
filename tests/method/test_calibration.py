"""mu: measured over tokens, whatever batches and processes they come in."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import assert_close, cases, tensor
from hypothesis import given
from hypothesis import strategies as st

from trustmopd.method import ScoreTotals, calibrated_scores

pytestmark = pytest.mark.unit

SHAPES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=4)
several_batches = st.tuples(st.integers(1, 4), SHAPES, st.integers(0, 2**32 - 1))


def draw_batches(num_teachers, shapes, seed):
    """Batches of (scores [K, B, T], mask [B, T]) of different lengths, the first token always valid."""
    rng = np.random.default_rng(seed)
    drawn = []
    for responses, tokens in shapes:
        mask = np.arange(tokens) < rng.integers(0, tokens + 1, (responses, 1))
        mask[0, 0] = True
        drawn.append((rng.gamma(2.0, 3.0, (num_teachers, responses, tokens)), mask))
    return drawn


def totals_of(drawn):
    totals = ScoreTotals(len(drawn[0][0]))
    for scores, mask in drawn:
        totals.add(tensor(scores), torch.tensor(mask))
    return totals


@given(several_batches)
def test_mu_is_the_token_weighted_mean_over_batches_of_different_lengths(shape):
    drawn = draw_batches(*shape)
    totals = totals_of(drawn)
    assert_close(totals.mean, oracle.mu(drawn))
    assert totals.tokens == sum(mask.sum() for _, mask in drawn)


def test_a_long_batch_counts_more_than_a_short_one():
    totals = ScoreTotals(1)
    totals.add(torch.full((1, 1, 9), 1.0), torch.ones(1, 9))
    totals.add(torch.full((1, 1, 1), 11.0), torch.ones(1, 1))
    assert totals.mean.tolist() == [2.0]
    assert totals.spread.tolist() == [3.0]


@given(several_batches)
def test_the_spread_is_the_standard_deviation_over_all_calibration_tokens(shape):
    drawn = draw_batches(*shape)
    tokens = np.concatenate([scores[:, mask] for scores, mask in drawn], axis=1)
    assert_close(totals_of(drawn).spread, tokens.std(axis=1), atol=1e-6)


@given(several_batches)
def test_totals_of_two_processes_add_up_to_those_of_one(shape):
    drawn = draw_batches(*shape)
    both = totals_of(drawn * 2)
    first, second = totals_of(drawn), totals_of(drawn)
    first.totals += second.totals
    assert_close(first.totals, both.totals)
    assert first.tokens == both.tokens
    assert_close(first.mean, both.mean)
    assert_close(first.spread, both.spread)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_totals_skip_padding_whatever_stands_there_and_whatever_the_mask_dtype(dtype):
    totals = ScoreTotals(2)
    totals.add(torch.tensor([[[1.0, 3.0, math.nan]], [[5.0, 5.0, math.inf]]]), torch.tensor([[1, 1, 0]]).to(dtype))
    assert totals.tokens == 2
    assert totals.mean.tolist() == [2.0, 5.0]
    assert totals.spread.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("constant", [0.0, 0.1, 0.3, 0.7, 2.3, 6.33])
def test_scores_that_never_vary_have_no_spread_whatever_the_rounding(constant):
    totals = ScoreTotals(1)
    for tokens in (3, 7, 11):
        totals.add(torch.full((1, tokens), constant, dtype=torch.float64), torch.ones(tokens))
    assert totals.spread.item() == pytest.approx(0.0, abs=1e-7)


def test_many_small_float32_scores_are_summed_without_losing_digits():
    totals = ScoreTotals(1)
    for _ in range(20):
        totals.add(torch.full((1, 100_000), 0.1), torch.ones(100_000))
    assert totals.mean.item() == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)


@given(case=cases())
def test_calibrated_scores_divide_each_teacher_by_its_own_mu(case):
    scores, mu = case.rng.gamma(2.0, 3.0, case.teacher_logits.shape[:-1]), case.some_mu()
    actual = calibrated_scores(tensor(scores), tensor(mu))
    for teacher in range(case.num_teachers):
        assert_close(actual[teacher], scores[teacher] / mu[teacher])
    assert calibrated_scores(tensor(scores, torch.float32), tensor(mu)).dtype == torch.float32


@given(several_batches)
def test_scores_calibrated_by_their_own_batches_average_one_for_every_teacher(shape):
    drawn = draw_batches(*shape)
    mu = totals_of(drawn).mean
    again = ScoreTotals(len(mu))
    for scores, mask in drawn:
        again.add(calibrated_scores(tensor(scores), mu), torch.tensor(mask))
    assert_close(again.mean, np.ones(len(mu)))
