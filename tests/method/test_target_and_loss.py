"""The mixed target, the reverse KL to it, and the average over responses: values and gradients."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import ONE_REFERENCE, assert_close, batches, cases, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from trustmopd.method import (
    mean_of_response_means,
    mixed_target,
    renormalise,
    response_means,
    reverse_kl,
    single_weights,
    uniform_weights,
)

pytestmark = pytest.mark.unit

MASK_DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16]


@given(case=cases())
def test_the_mixed_target_agrees_with_the_oracle_at_any_shape_and_is_normalised(case):
    weights = case.some_weights()
    target_logp = mixed_target(tensor(case.teacher_logp), tensor(weights))
    assert_close(target_logp, oracle.mixed_target(case.teacher_logp, weights))
    assert_close(target_logp.exp().sum(dim=-1), np.ones(target_logp.shape[:-1]))


@given(case=cases(scales=(0.3, 2.0)))
def test_target_and_loss_are_right_to_single_precision_in_float32(case):
    weights = case.some_weights()
    target_logp = mixed_target(tensor(case.teacher_logp, torch.float32), tensor(weights, torch.float32))
    expected = oracle.mixed_target(case.teacher_logp, weights)
    assert target_logp.dtype == torch.float32
    assert_close(target_logp, expected, rtol=1e-5, atol=5e-6)
    student_logits = tensor(case.student_logits, torch.float32, requires_grad=True)
    token_loss = reverse_kl(renormalise(student_logits), target_logp)
    assert_close(token_loss, oracle.reverse_kl(case.student_logp, expected), rtol=1e-4, atol=1e-5)
    token_loss.sum().backward()
    assert_close(student_logits.grad, oracle.reverse_kl_gradient(case.student_logp, expected), rtol=1e-4, atol=1e-5)


@given(case=cases())
def test_the_gradient_of_the_mixed_target_agrees_with_the_oracle(case):
    weights = case.some_weights()
    teacher_logp = tensor(case.teacher_logp, requires_grad=True)
    upstream = case.rng.standard_normal(case.student_logits.shape)
    mixed_target(teacher_logp, tensor(weights)).backward(tensor(upstream))
    target = np.exp(oracle.mixed_target(case.teacher_logp, weights))
    at_the_mean = upstream - target * upstream.sum(axis=-1, keepdims=True)
    assert_close(teacher_logp.grad, weights[..., None] * at_the_mean)


@settings(max_examples=10)
@given(case=cases(candidates=st.integers(2, 5)))
def test_the_composed_token_loss_passes_a_numerical_gradient_check(case):
    weights = tensor(case.some_weights())

    def loss(student_logits, teacher_logits):
        return reverse_kl(renormalise(student_logits), mixed_target(renormalise(teacher_logits), weights))

    inputs = tensor(case.student_logits, requires_grad=True), tensor(case.teacher_logits, requires_grad=True)
    assert torch.autograd.gradcheck(loss, inputs)


@given(case=cases(), data=st.data())
def test_permuting_the_teachers_with_their_weights_leaves_the_target(case, data):
    order = data.draw(st.permutations(range(case.num_teachers)))
    teacher_logp, weights = tensor(case.teacher_logp), tensor(case.some_weights())
    assert_close(mixed_target(teacher_logp[order], weights[order]), mixed_target(teacher_logp, weights))


@given(case=cases(), shift=st.floats(-30, 30))
def test_a_constant_shift_of_one_teachers_logits_leaves_the_target(case, shift):
    shifted, weights = case.teacher_logits.copy(), tensor(case.some_weights())
    shifted[0] += shift
    assert_close(mixed_target(tensor(shifted), weights), mixed_target(tensor(case.teacher_logits), weights))


@given(case=cases(), num_teachers=st.integers(1, 5))
def test_identical_teachers_are_their_own_mixture_whatever_the_weights(case, num_teachers):
    one = tensor(case.reference_logp)
    weights = torch.rand(num_teachers, *one.shape[:-1], generator=torch.Generator().manual_seed(0)).double() + 0.01
    weights = weights / weights.sum(dim=0)
    assert_close(mixed_target(one.expand(num_teachers, *one.shape), weights), one)


@given(case=cases(), data=st.data())
def test_all_weight_on_one_teacher_makes_it_the_target(case, data):
    index = data.draw(st.integers(0, case.num_teachers - 1))
    weights = single_weights(case.num_teachers, case.student_logits.shape[:-1], index, dtype=torch.float64)
    assert_close(mixed_target(tensor(case.teacher_logp), weights), case.teacher_logp[index])


def test_a_teacher_of_weight_zero_has_no_say_even_where_it_rules_a_candidate_out():
    teacher_logp = torch.tensor([[-math.inf, 0.0], [math.log(0.25), math.log(0.75)]], dtype=torch.float64)
    target_logp = mixed_target(teacher_logp, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert_close(target_logp, np.log([0.25, 0.75]))
    student_logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    reverse_kl(renormalise(student_logits), target_logp).backward()
    assert bool(student_logits.grad.isfinite().all())


def test_a_teacher_with_a_say_that_rules_a_candidate_out_rules_it_out_of_the_target():
    teacher_logp = torch.tensor([[-math.inf, 0.0, 0.0], [0.0, 0.0, 0.0]]).log_softmax(-1)
    target = mixed_target(teacher_logp, uniform_weights(2, ())).exp()
    assert_close(target, [0.0, 0.5, 0.5], rtol=1e-6)


@given(case=cases(own_references=ONE_REFERENCE))
def test_reverse_kl_and_its_gradient_agree_with_the_oracle_at_any_shape(case):
    student_logits = tensor(case.student_logits, requires_grad=True)
    token_loss = reverse_kl(renormalise(student_logits), tensor(case.reference_logp))
    assert_close(token_loss, oracle.reverse_kl(case.student_logp, case.reference_logp))
    upstream = case.rng.standard_normal(token_loss.shape)
    token_loss.backward(tensor(upstream))
    gradient = oracle.reverse_kl_gradient(case.student_logp, case.reference_logp)
    assert_close(student_logits.grad, upstream[..., None] * gradient)


@given(case=cases())
def test_reverse_kl_and_its_gradient_vanish_where_the_student_is_the_target(case):
    student_logits = tensor(case.student_logits, requires_grad=True)
    token_loss = reverse_kl(renormalise(student_logits), tensor(case.student_logp))
    assert_close(token_loss, np.zeros(token_loss.shape))
    token_loss.sum().backward()
    assert_close(student_logits.grad, np.zeros(student_logits.shape))


def test_reverse_kl_weighs_by_the_student_not_by_the_target():
    student_logp = torch.tensor([0.9, 0.1], dtype=torch.float64).log()
    target_logp = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    expected = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    assert reverse_kl(student_logp, target_logp).item() == pytest.approx(expected, abs=1e-12)


@given(case=batches())
def test_the_mean_of_response_means_and_its_gradient_agree_with_the_oracle(case):
    losses = case.rng.standard_normal(case.mask.shape)
    token_loss = tensor(losses, requires_grad=True)
    loss = mean_of_response_means(token_loss, torch.tensor(case.mask))
    assert loss.shape == ()
    assert_close(loss, oracle.mean_of_response_means(losses, case.mask))
    loss.backward()
    assert_close(token_loss.grad, oracle.token_share(case.mask))


def test_a_short_response_counts_as_much_as_a_long_one():
    token_loss = torch.tensor([[6.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    assert response_means(token_loss, mask).tolist() == [6.0, 2.0]
    assert mean_of_response_means(token_loss, mask).item() == 4.0


def test_an_empty_response_is_left_out_of_the_count():
    token_loss = torch.tensor([[5.0, 5.0], [2.0, 4.0]])
    mask = torch.tensor([[0, 0], [1, 1]])
    assert response_means(token_loss, mask).tolist() == [0.0, 3.0]
    assert mean_of_response_means(token_loss, mask).item() == 3.0


def test_a_batch_of_empty_responses_has_loss_and_gradient_zero():
    token_loss = torch.ones(2, 3, requires_grad=True)
    loss = mean_of_response_means(token_loss, torch.zeros(2, 3))
    loss.backward()
    assert loss.item() == 0.0
    assert not token_loss.grad.any()


@given(case=batches(), poison=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_stands_at_padded_positions_changes_neither_value_nor_gradient(case, poison):
    mask, clean = torch.tensor(case.mask), case.rng.standard_normal(case.mask.shape)
    outcomes = []
    for losses in (clean, np.where(case.mask, clean, poison)):
        token_loss = tensor(losses, requires_grad=True)
        loss = mean_of_response_means(token_loss, mask)
        loss.backward()
        outcomes.append((loss.detach(), token_loss.grad))
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    assert torch.equal(outcomes[0][1], outcomes[1][1])


@pytest.mark.parametrize("dtype", MASK_DTYPES)
def test_masks_of_any_dtype_give_the_same_mean(dtype):
    token_loss = torch.tensor([[1.0, 3.0, math.nan], [5.0, math.nan, math.nan]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).to(dtype)
    loss = mean_of_response_means(token_loss, mask)
    assert loss.dtype == torch.float32
    assert loss.item() == 3.5
