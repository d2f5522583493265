"""Teachers that do not speak at some tokens: at each token the pool is those who speak, and where nobody does the token
is masked. Expected values are the oracle's on that smaller pool, one token at a time."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import assert_close, batches, tensor
from hypothesis import given
from hypothesis import strategies as st
from test_objective import state

from trustmopd.method import (
    SCORES,
    CandidateState,
    ScoreTotals,
    mean_of_response_means,
    objective,
    random_weights,
    routed_weights,
    single_weights,
    trust,
    trust_weights,
    uniform_weights,
)

pytestmark = pytest.mark.unit

SEVERAL = st.integers(2, 4)


def draw_speakers(case):
    """[K, B, T]: each teacher speaks at two tokens of three; at some nobody does."""
    return case.rng.random(case.teacher_logits.shape[:-1]) < 2 / 3


def tokens_of(case):
    return list(np.ndindex(case.mask.shape))


def trusted(case, scores, mu, speaks):
    """The trust weights of those who speak at each token; 0 for the others."""
    weights = np.zeros(speaks.shape)
    for b, t in tokens_of(case):
        if speaks[:, b, t].any():
            who = np.flatnonzero(speaks[:, b, t])
            weights[who, b, t] = oracle.trust_weights(scores[who, b, t], mu[who], 7.0)
    return weights


def shared(weights, speaks):
    """Each token's weights in the same proportions among those who speak there."""
    found = np.zeros(weights.shape)
    for b, t in np.ndindex(weights.shape[1:]):
        total = sum(weights[k, b, t] for k in range(len(weights)) if speaks[k, b, t])
        for k in range(len(weights)):
            if speaks[k, b, t] and total > 0:
                found[k, b, t] = weights[k, b, t] / total
    return found


def levelled(weights, mask, speaks):
    """Each response's mean over its taught tokens, for those who speak at each of them."""
    means = np.zeros(weights.shape)
    for b in range(mask.shape[0]):
        taught = [t for t in range(mask.shape[1]) if mask[b, t] and weights[:, b, t].any()]
        for t in taught:
            means[:, b, t] = sum(weights[:, b, other] for other in taught) / len(taught)
    return shared(means, speaks)


def expected_objective(case, weights):
    """Loss and gradient, in which a token without weights has neither and counts all the same."""
    taught = weights.any(axis=0)
    target = oracle.mixed_target(case.teacher_logp, weights)
    token_loss = np.where(taught, oracle.reverse_kl(case.student_logp, target), 0.0)
    share = oracle.token_share(case.mask) * taught
    gradient = oracle.reverse_kl_gradient(case.student_logp, target) * share[..., None]
    return token_loss, oracle.mean_of_response_means(token_loss, case.mask), gradient


def check(case, weights, rule, speaks, **options):
    """The product's objective under `rule` has these weights at response tokens, and their loss and gradient."""
    student_logits = tensor(case.student_logits, requires_grad=True)
    at = state(case, student_logits, speaks=torch.tensor(speaks))
    result = objective(at, rule, **options)
    loss = mean_of_response_means(result.token_loss, at.mask)
    loss.backward()
    token_loss, mean, gradient = expected_objective(case, weights)
    valid = torch.tensor(case.mask)
    assert_close(result.weights[:, valid], weights[:, case.mask], atol=1e-9)
    assert_close(result.token_loss[valid], token_loss[case.mask], atol=1e-9)
    assert_close(loss, mean, atol=1e-9)
    assert_close(student_logits.grad, gradient, atol=1e-9)
    return result


@pytest.mark.parametrize("granularity", ["token", "response"])
@given(case=batches(teachers=SEVERAL))
def test_trust_is_shared_among_those_who_speak(granularity, case):
    speaks, mu = draw_speakers(case), case.some_mu()
    scores = oracle.displacement(case.teacher_logp, case.reference_logp)
    weights = trusted(case, scores, mu, speaks)
    if granularity == "response":
        weights = levelled(weights, case.mask, speaks)
    options = {"score": SCORES["displacement"], "mu": tensor(mu), "granularity": granularity}
    result = check(case, weights, trust(7.0), speaks, **options)
    assert_close(result.scores, scores * speaks)


@given(case=batches(teachers=SEVERAL), data=st.data())
def test_every_other_rule_keeps_its_proportions_among_those_who_speak(case, data):
    speaks, (responses, length) = draw_speakers(case), case.mask.shape
    labels = data.draw(st.lists(st.integers(0, case.num_teachers - 1), min_size=responses, max_size=responses))
    drawn = random_weights(case.num_teachers, (responses, length), torch.Generator().manual_seed(3))
    rules = {
        "uniform": uniform_weights(case.num_teachers, (responses, length), dtype=torch.float64),
        "random": drawn.double(),
        "single": single_weights(case.num_teachers, (responses, length), 1, dtype=torch.float64),
        "routed": routed_weights(case.num_teachers, torch.tensor(labels), length, dtype=torch.float64),
    }
    for weights in rules.values():
        check(case, shared(weights.numpy(), speaks), lambda at, scores, weights=weights: weights, speaks)


def test_uniform_is_uniform_over_those_who_speak_and_a_silent_single_teacher_masks_the_token():
    teacher_logp = torch.randn(3, 1, 2, 4, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    ids = torch.arange(4).expand(1, 2, 4)
    speaks = torch.tensor([[[1, 0]], [[1, 1]], [[0, 1]]])
    fields = (teacher_logp[0], teacher_logp, None, ids, ids[..., 0], torch.ones(1, 2))
    at = CandidateState(*fields, speaks)
    even = objective(at, lambda at, scores: uniform_weights(3, (1, 2)))
    assert even.weights[:, 0].T.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    first = objective(at, lambda at, scores: single_weights(3, (1, 2), 0))
    assert first.weights[:, 0].T.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert first.token_loss[0, 1] == 0


@given(case=batches(teachers=SEVERAL))
def test_if_everyone_speaks_the_mask_changes_nothing(case):
    mu, everyone = tensor(case.some_mu()), torch.ones(case.teacher_logits.shape[:-1])
    for granularity in ("token", "response"):
        without, within = (
            objective(at, trust(7.0), SCORES["displacement"], mu, granularity)
            for at in (state(case), state(case, speaks=everyone))
        )
        assert_close(within.weights, without.weights)
        assert_close(within.token_loss, without.token_loss)
        assert torch.equal(within.degenerate, without.degenerate)


def test_only_speakers_decide_whether_a_token_is_degenerate():
    scores = torch.tensor([[0.0, 0.0, 0.0], [0.0, 5.0, 5.0]]).view(2, 1, 3)
    speaks = torch.tensor([[1, 1, 0], [1, 0, 0]]).view(2, 1, 3)
    weights = trust_weights(scores, None, 7.0, speaks)
    assert weights[:, 0].T.tolist() == [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]
    ids = torch.arange(4).expand(1, 3, 4)
    logp = torch.zeros(1, 3, 4).log_softmax(-1)
    at = CandidateState(logp, torch.stack([logp] * 2), None, ids, ids[..., 0], torch.ones(1, 3), speaks)
    result = objective(at, trust(7.0), lambda at: scores)
    assert result.degenerate.tolist() == [[True, True, False]]


@pytest.mark.parametrize("rule", list(SCORES))
def test_what_a_silent_teacher_computes_has_no_effect_even_if_it_is_no_number(rule):
    generator = torch.Generator().manual_seed(5)
    student, reference, *teachers = torch.randn(4, 1, 2, 4, generator=generator).log_softmax(-1)
    ids = torch.arange(4).expand(1, 2, 4)
    broken = teachers[1].clone()
    broken[0, 1] = math.nan
    losses = []
    for second in (teachers[1], broken):
        logits = student.clone().requires_grad_()
        at = CandidateState(
            *(logits.log_softmax(-1), torch.stack([teachers[0], second]), reference, ids, ids[..., 0]),
            *(torch.ones(1, 2), torch.tensor([[[1, 1]], [[1, 0]]])),
        )
        result = objective(at, trust(7.0), SCORES[rule], torch.ones(2))
        result.token_loss.sum().backward()
        losses.append((result.token_loss.tolist(), logits.grad.tolist()))
    assert losses[0] == losses[1]


def test_a_rule_masks_a_token_with_zero_weights_and_no_denominator_changes():
    generator = torch.Generator().manual_seed(6)
    student, *teachers = torch.randn(3, 2, 3, 4, generator=generator).log_softmax(-1)
    ids = torch.arange(4).expand(2, 3, 4)
    at = CandidateState(student, torch.stack(teachers), None, ids, ids[..., 0], torch.ones(2, 3))
    weights = uniform_weights(2, (2, 3))
    whole = objective(at, lambda at, scores: weights)
    masked = weights.clone()
    masked[:, 0, 1:] = 0.0
    masked[:, 1] = 0.0
    result = objective(at, lambda at, scores: masked)
    assert result.token_loss.tolist() == [[whole.token_loss[0, 0].item(), 0.0, 0.0], [0.0, 0.0, 0.0]]
    loss = mean_of_response_means(result.token_loss, at.mask)
    assert loss.item() == pytest.approx(whole.token_loss[0, 0].item() / 3 / 2)
    in_whole = objective(at, lambda at, scores: masked, granularity="response")
    assert torch.equal(in_whole.weights, masked)


@given(case=batches(teachers=SEVERAL))
def test_mu_is_a_mean_over_the_tokens_at_which_a_teacher_speaks(case):
    scores, speaks = case.rng.gamma(2.0, 3.0, case.teacher_logits.shape[:-1]), draw_speakers(case)
    case.mask[0, 0] = True
    speaks[:, 0, 0] = True
    totals = ScoreTotals(case.num_teachers)
    totals.add(tensor(scores), torch.tensor(case.mask), torch.tensor(speaks))
    totals.add(tensor(scores), torch.tensor(case.mask))
    for teacher in range(case.num_teachers):
        own = [scores[teacher][at] for at in tokens_of(case) if case.mask[at] and speaks[teacher][at]]
        own += [scores[teacher][at] for at in tokens_of(case) if case.mask[at]]
        assert_close(totals.mean[teacher], np.mean(own))
        assert_close(totals.spread[teacher], np.std(own), atol=1e-6)
    assert totals.tokens == 2 * case.mask.sum()
