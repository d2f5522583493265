"""Algorithm 2 as a whole: each score, granularity and allocation rule, down to the student's gradient."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import assert_close, batches, tensor
from hypothesis import given
from hypothesis import strategies as st

from trustmopd.method import (
    SCORES,
    CandidateState,
    mean_of_response_means,
    mixed_target,
    objective,
    renormalise,
    routed_weights,
    single_weights,
    trust,
    trust_weights,
    uniform_weights,
)

pytestmark = pytest.mark.unit

SEVERAL = st.integers(2, 5)
ORACLE_SCORES = {
    "displacement": lambda case: oracle.displacement(case.teacher_logp, case.reference_logp),
    "likelihood": lambda case: oracle.teacher_likelihood(case.teacher_logp, case.candidate_ids, case.sampled_ids),
    "negative_entropy": lambda case: oracle.negative_entropy(case.teacher_logp),
    "teacher_student_kl": lambda case: oracle.teacher_student_kl(case.teacher_logp, case.student_logp),
}


def state(case, student_logits=None, dtype=torch.float64, **changes):
    student_logits = tensor(case.student_logits, dtype) if student_logits is None else student_logits
    fields = {
        "student_logp": renormalise(student_logits),
        "teacher_logp": renormalise(tensor(case.teacher_logits, dtype)),
        "reference_logp": renormalise(tensor(case.reference_logits, dtype)),
        "candidate_ids": torch.tensor(case.candidate_ids),
        "sampled_ids": torch.tensor(case.sampled_ids),
        "mask": torch.tensor(case.mask),
    }
    return CandidateState(**{**fields, **changes})


def always(weights):
    return lambda at, calibrated: weights


@pytest.mark.parametrize("granularity", ["token", "response"])
@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("rule", list(SCORES))
@given(case=batches())
def test_the_whole_objective_and_its_student_gradient_agree_with_the_oracle(rule, calibrated, granularity, case):
    mu = case.some_mu() if calibrated else None
    scores = ORACLE_SCORES[rule](case).clip(0)
    weights = oracle.trust_weights(scores, mu, 7.0)
    if granularity == "response":
        weights = oracle.response_level(weights, case.mask)
    loss, gradient = oracle.objective(case.student_logp, case.teacher_logp, weights, case.mask)

    student_logits = tensor(case.student_logits, requires_grad=True)
    at = state(case, student_logits)
    result = objective(at, trust(7.0), SCORES[rule], None if mu is None else tensor(mu), granularity)
    actual = mean_of_response_means(result.token_loss, at.mask)
    actual.backward()
    assert_close(result.scores, scores)
    assert_close(result.weights, weights, atol=1e-9)
    assert_close(result.target_logp, oracle.mixed_target(case.teacher_logp, weights), atol=1e-9)
    assert_close(actual, loss, atol=1e-9)
    assert_close(student_logits.grad, gradient, atol=1e-9)


@given(case=batches(scales=(0.3, 2.0)))
def test_the_objective_is_right_to_single_precision_in_float32(case):
    mu = case.some_mu()
    weights = oracle.trust_weights(ORACLE_SCORES["displacement"](case), mu, 7.0)
    loss, gradient = oracle.objective(case.student_logp, case.teacher_logp, weights, case.mask)
    student_logits = tensor(case.student_logits, torch.float32, requires_grad=True)
    at = state(case, student_logits, torch.float32)
    result = objective(at, trust(7.0), SCORES["displacement"], tensor(mu, torch.float32))
    actual = mean_of_response_means(result.token_loss, at.mask)
    actual.backward()
    assert actual.dtype == torch.float32
    assert_close(actual, loss, rtol=1e-4, atol=1e-5)
    assert_close(student_logits.grad, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", list(SCORES))
@given(case=batches())
def test_teachers_and_reference_receive_no_gradient_even_if_they_require_one(rule, case):
    student_logits = tensor(case.student_logits, requires_grad=True)
    teacher_logits = tensor(case.teacher_logits, requires_grad=True)
    reference_logits = tensor(case.reference_logits, requires_grad=True)
    frozen = {"teacher_logp": renormalise(teacher_logits), "reference_logp": renormalise(reference_logits)}
    result = objective(state(case, student_logits, **frozen), trust(7.0), SCORES[rule], tensor(case.some_mu()))
    assert not any(part.requires_grad for part in (result.scores, result.weights, result.target_logp))
    result.token_loss.sum().backward()
    assert student_logits.grad is not None
    assert teacher_logits.grad is None
    assert reference_logits.grad is None


@given(case=batches(teachers=SEVERAL))
def test_callables_that_leak_a_gradient_are_cut_off_from_the_student(case):
    def leaky_score(at):
        return (at.student_logp.exp() * at.teacher_logp).sum(dim=-1).square() + 0.1

    def leaky_rule(at, calibrated):
        return torch.softmax(calibrated + at.student_logp.sum(dim=-1), dim=0)

    student_logits = tensor(case.student_logits, requires_grad=True)
    at = state(case, student_logits)
    result = objective(at, leaky_rule, leaky_score, tensor(case.some_mu()))
    assert not any(part.requires_grad for part in (result.scores, result.weights, result.target_logp))
    mean_of_response_means(result.token_loss, at.mask).backward()
    _, gradient = oracle.objective(case.student_logp, case.teacher_logp, result.weights.numpy(), case.mask)
    assert_close(student_logits.grad, gradient, atol=1e-9)


@given(case=batches(teachers=SEVERAL), data=st.data())
def test_permuting_the_teachers_permutes_weights_and_leaves_the_loss(case, data):
    order = data.draw(st.permutations(range(case.num_teachers)))
    at, mu = state(case), tensor(case.some_mu())
    own = case.reference_logits.ndim == case.teacher_logits.ndim
    references = at.reference_logp[order] if own else at.reference_logp
    permuted = state(case, teacher_logp=at.teacher_logp[order], reference_logp=references)
    plain = objective(at, trust(7.0), SCORES["displacement"], mu)
    moved = objective(permuted, trust(7.0), SCORES["displacement"], mu[order])
    assert_close(moved.weights, plain.weights[order])
    assert_close(moved.target_logp, plain.target_logp)
    assert_close(moved.token_loss, plain.token_loss)


@given(case=batches(), shifts=st.tuples(*[st.floats(-30, 30)] * 3))
def test_a_constant_shift_of_any_models_logits_changes_nothing(case, shifts):
    at, mu = state(case), tensor(case.some_mu())
    student, teacher, reference = (
        renormalise(tensor(logits) + shift)
        for logits, shift in zip((case.student_logits, case.teacher_logits, case.reference_logits), shifts, strict=True)
    )
    moved = state(case, student_logp=student, teacher_logp=teacher, reference_logp=reference)
    plain, shifted = (objective(one, trust(7.0), SCORES["displacement"], mu) for one in (at, moved))
    assert_close(shifted.weights, plain.weights, atol=1e-9)
    assert_close(shifted.token_loss, plain.token_loss, atol=1e-9)


@given(case=batches(teachers=st.just(1)))
def test_a_pool_of_one_teacher_is_plain_on_policy_distillation(case):
    result = objective(state(case), trust(7.0), SCORES["displacement"], tensor(case.some_mu()))
    assert_close(result.token_loss, oracle.reverse_kl(case.student_logp, case.teacher_logp[0]))


@given(case=batches(), data=st.data())
def test_routed_weights_give_each_response_its_own_teachers_loss(case, data):
    responses, tokens = case.mask.shape
    labels = data.draw(st.lists(st.integers(0, case.num_teachers - 1), min_size=responses, max_size=responses))
    weights = routed_weights(case.num_teachers, torch.tensor(labels), tokens, dtype=torch.float64)
    result = objective(state(case, reference_logp=None), always(weights))
    for response, label in enumerate(labels):
        expected = oracle.reverse_kl(case.student_logp[response], case.teacher_logp[label, response])
        assert_close(result.token_loss[response], expected)
    assert result.scores is None
    assert not result.degenerate.any()


def test_a_ruled_out_candidate_of_an_unused_teacher_leaves_loss_and_gradient_finite():
    teacher_logp = torch.tensor([[0.0, 1.0, 2.0], [0.0, -math.inf, 0.0]]).log_softmax(-1).view(2, 1, 1, 3)
    student_logits = torch.zeros(1, 1, 3, requires_grad=True)
    ids = torch.arange(3).view(1, 1, 3)
    at = CandidateState(renormalise(student_logits), teacher_logp, None, ids, ids[..., 0], torch.ones(1, 1))
    result = objective(at, always(single_weights(2, (1, 1), 0)))
    result.token_loss.sum().backward()
    assert bool(result.token_loss.isfinite().all())
    assert bool(student_logits.grad.isfinite().all())


def test_an_allocation_rule_receives_the_state_and_the_calibrated_scores():
    case_scores, mu = torch.tensor([2.0, 9.0]).view(2, 1, 1), torch.tensor([4.0, 3.0])
    received = []

    def rule(at, calibrated):
        received.append((at, calibrated))
        return uniform_weights(2, (1, 1))

    ids = torch.arange(3).view(1, 1, 3)
    logp = torch.zeros(1, 1, 3).log_softmax(-1)
    at = CandidateState(logp, torch.stack([logp] * 2), None, ids, ids[..., 0], torch.ones(1, 1))
    result = objective(at, rule, lambda _: case_scores, mu)
    assert received[0][0] is at
    assert received[0][1].flatten().tolist() == [0.5, 3.0]
    assert result.scores.flatten().tolist() == [2.0, 9.0]
    objective(at, rule)
    assert received[1][1] is None


@given(case=batches(teachers=SEVERAL))
def test_calibrating_first_gives_the_weights_of_dividing_by_mu_inside(case):
    at, mu = state(case), tensor(case.some_mu())
    result = objective(at, trust(5.0), SCORES["displacement"], mu)
    assert_close(result.weights, trust_weights(result.scores, mu, 5.0))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_degenerate_tokens_are_counted_at_valid_positions_only(dtype):
    reference_logp = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2)).log_softmax(-1)
    teacher_logp = torch.stack([reference_logp, reference_logp])
    teacher_logp[1, 0, 0] = torch.tensor([0.7, 0.1, 0.1, 0.1]).log()
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).to(dtype)
    ids = torch.arange(4).expand(2, 3, 4)
    at = CandidateState(reference_logp, teacher_logp, reference_logp, ids, ids[..., 0], mask)
    result = objective(at, trust(7.0), SCORES["displacement"], torch.ones(2))
    assert result.degenerate.tolist() == [[False, True, False], [True, False, False]]
    assert result.weights[:, 0, 0].tolist() == [0.0, 1.0]
    assert result.weights[:, 0, 1].tolist() == [0.5, 0.5]


def test_a_sampled_token_outside_the_candidates_is_degenerate_for_the_likelihood_rule():
    logp = torch.randn(1, 2, 4, generator=torch.Generator().manual_seed(3)).log_softmax(-1)
    teacher_logp = torch.stack([logp, logp.flip(-1)])
    ids = torch.arange(4).expand(1, 2, 4)
    at = CandidateState(logp, teacher_logp, None, ids, torch.tensor([[2, 99]]), torch.ones(1, 2))
    result = objective(at, trust(7.0), SCORES["likelihood"], torch.ones(2))
    assert result.degenerate.tolist() == [[False, True]]
    assert result.weights[:, 0, 1].tolist() == [0.5, 0.5]
    assert result.weights[0, 0, 0].item() != 0.5


@given(case=batches())
def test_target_and_emphasis_are_functions_of_the_state_and_the_weights(case):
    weights = tensor(case.some_weights())
    emphases = tensor(case.rng.uniform(0.0, 3.0, case.mask.shape))
    at = state(case)
    result = objective(
        at,
        always(weights),
        target=lambda at, weights: at.teacher_logp[weights.flatten(1).sum(1).argmax()],
        emphasis=lambda at, weights: emphases,
    )
    strongest = case.teacher_logp[int(weights.flatten(1).sum(1).argmax())]
    expected = emphases.numpy() * oracle.reverse_kl(case.student_logp, strongest)
    assert_close(result.target_logp, strongest)
    assert_close(result.token_loss, expected)


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.nan, math.inf])
def test_a_wrong_gamma_is_refused_when_the_rule_is_made(gamma):
    with pytest.raises(ValueError, match="gamma"):
        trust(gamma)


def test_displacement_without_a_reference_and_trust_without_a_score_are_refused_with_what_to_pass():
    logp, ids = torch.zeros(1, 1, 3).log_softmax(-1), torch.arange(3).view(1, 1, 3)
    at = CandidateState(logp, torch.stack([logp] * 2), None, ids, ids[..., 0], torch.ones(1, 1))
    with pytest.raises(ValueError, match="reference_logp"):
        objective(at, trust(7.0), SCORES["displacement"])
    with pytest.raises(ValueError, match="trust.*score"):
        objective(at, trust(7.0))


@given(case=batches(candidates=st.just(1)))
def test_one_candidate_leaves_nothing_to_learn(case):
    student_logits = tensor(case.student_logits, requires_grad=True)
    result = objective(state(case, student_logits), trust(7.0), SCORES["displacement"], tensor(case.some_mu()))
    result.token_loss.sum().backward()
    assert not result.token_loss.any()
    assert not student_logits.grad.any()
    assert_close(result.weights, np.full(result.weights.shape, 1 / case.num_teachers))
    assert torch.equal(result.degenerate, torch.tensor(case.mask))


def _state(teacher_logp: torch.Tensor, reference_logp: torch.Tensor) -> CandidateState:
    shape = reference_logp.shape
    return CandidateState(
        student_logp=torch.zeros(shape).log_softmax(-1),
        teacher_logp=teacher_logp,
        reference_logp=reference_logp,
        candidate_ids=torch.zeros(shape, dtype=torch.long),
        sampled_ids=torch.zeros(shape[:-1], dtype=torch.long),
        mask=torch.ones(shape[:-1]),
    )


def test_a_teacher_gone_wrong_never_becomes_a_flat_target() -> None:
    torch.manual_seed(0)
    teacher_logp = torch.randn(2, 1, 3, 4).log_softmax(-1)
    teacher_logp[1, 0, 2] = float("nan")
    with pytest.raises(ValueError, match="score.*NaN"):
        objective(_state(teacher_logp, torch.randn(1, 3, 4).log_softmax(-1)), trust(7.0), SCORES["displacement"])
    assert mixed_target(teacher_logp, torch.full((2, 1, 3), 0.5))[0, 2].isnan().all()


def test_weights_that_do_not_sum_to_one_over_teachers_are_refused() -> None:
    state = _state(torch.zeros(2, 1, 3, 4).log_softmax(-1), torch.zeros(1, 3, 4).log_softmax(-1))
    for wrong in (torch.full((2, 1, 3), 1 / 3), torch.tensor([[[1.5]], [[-0.5]]]).expand(2, 1, 3)):
        with pytest.raises(ValueError, match="allocation.*sum"):
            objective(state, lambda at, scores, wrong=wrong: wrong)


@pytest.mark.parametrize("mu", [0.0, -1.0, float("nan"), float("inf")])
def test_the_objective_refuses_a_mu_that_cannot_divide(mu: float) -> None:
    torch.manual_seed(0)
    state = _state(torch.randn(2, 1, 3, 4).log_softmax(-1), torch.randn(1, 3, 4).log_softmax(-1))
    with pytest.raises(ValueError, match="mu = "):
        objective(state, trust(7.0), SCORES["displacement"], torch.tensor([1.0, mu]))


def test_the_objective_refuses_weights_of_another_shape_and_an_unknown_granularity() -> None:
    state = _state(torch.zeros(2, 1, 3, 4).log_softmax(-1), torch.zeros(1, 3, 4).log_softmax(-1))
    with pytest.raises(ValueError, match=r"allocation.*\(2, 3\).*\[K, B, T\]"):
        objective(state, lambda at, scores: torch.full((2, 3), 0.5))
    with pytest.raises(ValueError, match=r"score.*\(2, 1, 3, 4\)"):
        objective(state, trust(7.0), lambda at: at.teacher_logp)
    with pytest.raises(ValueError, match="granularity = 'respones'"):
        objective(state, lambda at, scores: torch.full((2, 1, 3), 0.5), granularity="respones")
