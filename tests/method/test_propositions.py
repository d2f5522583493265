"""What the paper proves, asked of the product's own functions."""

import numpy as np
import oracle
import pytest
import torch
from cases import assert_close, batches, cases, tensor
from hypothesis import given
from hypothesis import strategies as st

from trustmopd.method import (
    ScoreTotals,
    calibrated_scores,
    displacement,
    mixed_target,
    renormalise,
    response_level,
    reverse_kl,
    top_candidates,
    trust_weights,
)

pytestmark = pytest.mark.unit

SEVERAL = st.integers(2, 5)
PAIRED = st.integers(2, 40)


def log_odds_change(case, first, second):
    """log q_k(v)/q_k(u) - log q_ref(v)/q_ref(u), from the whole distributions."""
    teacher, reference = np.exp(case.teacher_logp), np.exp(case.reference_logp)
    of_teacher = np.log(teacher[..., first] / teacher[..., second])
    return of_teacher - np.log(reference[..., first] / reference[..., second])


@given(case=cases(candidates=PAIRED), data=st.data())
def test_on_two_candidates_displacement_is_their_change_in_log_odds(case, data):
    """Eq. 22: centring and renormalising keep every contrast, so a pair's displacement is |contrast| / √2."""
    pair = data.draw(st.lists(st.integers(0, case.student_logits.shape[-1] - 1), min_size=2, max_size=2, unique=True))
    teacher_logp, reference_logp = tensor(case.teacher_logp)[..., pair], tensor(case.reference_logp)[..., pair]
    expected = np.abs(log_odds_change(case, *pair)) / np.sqrt(2)
    assert_close(displacement(teacher_logp, reference_logp), expected)
    assert_close(displacement(renormalise(teacher_logp), renormalise(reference_logp)), expected)


@given(case=cases(candidates=PAIRED))
def test_displacement_is_made_of_all_pairwise_changes_in_log_odds_and_nothing_else(case):
    """Eq. 22 summed over pairs: C · rho² is the sum of the squared contrasts, in which no offset can hide."""
    count = case.student_logits.shape[-1]
    squared = sum(log_odds_change(case, v, u) ** 2 for v in range(count) for u in range(v))
    rho = displacement(tensor(case.teacher_logp), tensor(case.reference_logp))
    assert_close(rho.square() * count, squared)


@given(case=cases(candidates=PAIRED), offset=st.floats(-5, 5))
def test_the_log_ratio_splits_into_displacement_and_common_offset(case, offset):
    """Eq. 20, and that no other offset gives a shorter vector."""
    log_ratio = case.teacher_logp - case.reference_logp
    count, mean = log_ratio.shape[-1], log_ratio.mean(axis=-1)
    rho = displacement(tensor(case.teacher_logp), tensor(case.reference_logp))
    assert_close(rho.square() + count * tensor(mean).square(), (log_ratio**2).sum(axis=-1))
    shifted = np.linalg.norm(log_ratio + offset, axis=-1)
    assert bool((rho.numpy() <= shifted + 1e-9).all())


@given(case=batches(teachers=SEVERAL), drift=st.floats(0.2, 5.0))
def test_a_frozen_divisor_shows_the_drift_that_a_batch_local_one_hides(case, drift):
    """Eqs. 23 and 24."""
    everywhere = torch.ones(case.mask.shape)
    start = tensor(case.rng.gamma(2.0, 3.0, case.teacher_logits.shape[:-1]))
    later = start.clone()
    later[0] *= drift
    frozen, local = ScoreTotals(case.num_teachers), ScoreTotals(case.num_teachers)
    frozen.add(start, everywhere)
    local.add(later, everywhere)

    mean_by_frozen = calibrated_scores(later, frozen.mean).flatten(1).mean(dim=1)
    assert_close(mean_by_frozen, local.mean / frozen.mean)
    assert_close(mean_by_frozen, np.array([drift] + [1.0] * (case.num_teachers - 1)))
    assert_close(calibrated_scores(later, local.mean).flatten(1).mean(dim=1), np.ones(case.num_teachers))
    # In weights: by its batch's own mean the drifted teacher would be weighed as if nothing had happened.
    assert_close(trust_weights(later, local.mean, 7.0), trust_weights(start, frozen.mean, 7.0))
    gained = trust_weights(later, frozen.mean, 7.0)[0] - trust_weights(start, frozen.mean, 7.0)[0]
    assert bool((gained * (drift - 1) >= 0).all())


@given(case=cases(candidates=PAIRED))
def test_the_targets_log_odds_are_the_weighted_sum_of_the_teachers_log_odds(case):
    """Eq. 26: any loss that is affine in the teachers' log-probabilities sees only their weighted sum."""
    weights = case.some_weights()
    target_logp = mixed_target(tensor(case.teacher_logp), tensor(weights))
    log_odds = case.teacher_logp - case.teacher_logp[..., :1]
    assert_close(target_logp - target_logp[..., :1], (weights[..., None] * log_odds).sum(axis=0))


@given(case=cases())
def test_the_weighted_divergences_are_the_mixtures_divergence_less_log_z_with_one_student_gradient(case):
    """Eq. 29."""
    weights = case.some_weights()
    teacher_logp = tensor(case.teacher_logp)
    separate_logits = tensor(case.student_logits, requires_grad=True)
    separate = sum(
        tensor(share) * reverse_kl(renormalise(separate_logits), teacher)
        for share, teacher in zip(weights, teacher_logp, strict=True)
    )
    mixed_logits = tensor(case.student_logits, requires_grad=True)
    mixed = reverse_kl(renormalise(mixed_logits), mixed_target(teacher_logp, tensor(weights)))
    _, partition = oracle.unnormalised_mixture(case.teacher_logp, weights)
    assert bool((partition <= 1 + 1e-12).all())
    assert_close(separate, mixed.detach() - tensor(np.log(partition)))

    separate.sum().backward()
    mixed.sum().backward()
    assert_close(mixed_logits.grad, separate_logits.grad)


@given(case=batches(teachers=SEVERAL))
def test_response_level_weights_keep_each_teachers_total_and_lose_its_timing(case):
    """Eqs. 35 and 36."""
    weights, mask = tensor(case.some_weights()), torch.tensor(case.mask)
    levelled = response_level(weights, mask)
    assert_close((levelled * mask).sum(dim=-1), (weights * mask).sum(dim=-1))
    assert torch.equal(levelled, levelled[..., :1].expand_as(levelled))


def optimal_teachers(utility, reference_logp, beta):
    """Policies that maximise utility less beta times the divergence from the reference: softmax(log ref + Q / beta)."""
    tempered = utility / beta.reshape(-1, *[1] * (utility.ndim - 1))
    return renormalise(tensor(reference_logp + tempered))


def on_candidates(logp, ids):
    return renormalise(logp.gather(-1, ids.expand(*logp.shape[:-1], ids.shape[-1])))


@given(case=cases(candidates=PAIRED), data=st.data())
def test_an_optimal_teachers_displacement_is_its_utility_contrast_over_beta(case, data):
    """Theorem 1, on the whole vocabulary and on the student's candidates."""
    beta = case.rng.uniform(0.2, 5.0, case.num_teachers)
    teacher_logp = optimal_teachers(case.teacher_logits, case.reference_logp, beta)
    for count in (case.student_logits.shape[-1], data.draw(st.integers(1, case.student_logits.shape[-1]))):
        ids = top_candidates(tensor(case.student_logits), count)
        utility = np.take_along_axis(case.teacher_logits, ids.numpy()[None], axis=-1)
        contrast = np.linalg.norm(utility - utility.mean(axis=-1, keepdims=True), axis=-1)
        rho = displacement(on_candidates(teacher_logp, ids), on_candidates(tensor(case.reference_logp), ids))
        assert_close(rho, contrast / beta.reshape(-1, *[1] * (contrast.ndim - 1)), atol=1e-10)


@given(case=batches(teachers=SEVERAL, candidates=PAIRED))
def test_calibration_cancels_each_teachers_beta_and_leaves_relative_utility(case):
    """Corollary 1: weights follow sigma over its calibration mean, and so does their ranking."""
    sigma = np.linalg.norm(case.teacher_logits - case.teacher_logits.mean(axis=-1, keepdims=True), axis=-1)
    typical = sigma.reshape(case.num_teachers, -1).mean(axis=1)
    for beta in (np.ones(case.num_teachers), case.rng.uniform(0.2, 5.0, case.num_teachers)):
        rho = displacement(
            optimal_teachers(case.teacher_logits, case.reference_logp, beta), tensor(case.reference_logp)
        )
        totals = ScoreTotals(case.num_teachers)
        totals.add(rho, torch.ones(case.mask.shape))
        assert_close(totals.mean, typical / beta)
        relative = calibrated_scores(rho, totals.mean)
        assert_close(relative, sigma / typical[:, None, None])
        weights = trust_weights(rho, totals.mean, 7.0)
        assert_close(weights, oracle.trust_weights(sigma, typical, 7.0))
        assert_close(weights.amax(dim=0), weights.gather(0, relative.argmax(dim=0, keepdim=True))[0])


def test_without_calibration_the_teacher_of_smaller_beta_takes_the_weight():
    """Eq. 34: the same utilities, two habits; raw scores follow the habit."""
    utility = np.array([[1.0, 0.0, -1.0], [1.0, 0.0, -1.0]])
    reference_logp = np.log([0.5, 0.3, 0.2])
    rho = displacement(optimal_teachers(utility, reference_logp, np.array([1.0, 0.5])), tensor(reference_logp))
    assert trust_weights(rho, None, 7.0).tolist() == pytest.approx([1 / 129, 128 / 129], rel=1e-9)
    assert trust_weights(rho, rho, 7.0).tolist() == pytest.approx([0.5, 0.5], rel=1e-9)
