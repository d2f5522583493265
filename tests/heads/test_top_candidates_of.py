"""The student's top-C and its log-partition from hidden states, without the logits of more than a block of tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import ADVERSARIAL, DEVICE, DEVICES, SHAPES, TRANSFORMS, assert_top, problem

from trustmopd.heads import chunked, reference, top_candidates_of
from trustmopd.heads.shared import Projection

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 1e-4}


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_top_candidates_have_the_largest_logits_and_the_partition_is_over_all(shape, dtype, transform, device):
    case = problem(shape, dtype, device=device)
    assert_top(chunked, case.hidden, case.weight, shape[3], case.bias, tolerance=TOLERANCE[dtype], **transform)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_shape_and_any_trimming_agrees_with_the_plain_computation(data):
    vocab_size = data.draw(st.integers(1, 60))
    kept = data.draw(st.none() | st.integers(1, vocab_size))
    shape = (data.draw(st.integers(0, 40)), data.draw(st.integers(1, 20)), vocab_size, 1)
    case = problem(shape, torch.float64, seed=data.draw(st.integers(0, 99)))
    count = data.draw(st.integers(1, kept or vocab_size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "BLOCK_BYTES", data.draw(st.integers(1, 5000)))
        transform = data.draw(st.sampled_from(TRANSFORMS))
        assert_top(chunked, case.hidden, case.weight, count, case.bias, vocab_size=kept, tolerance=1e-12, **transform)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("logits", ADVERSARIAL.values(), ids=ADVERSARIAL)
@pytest.mark.parametrize("count", [1, 5, 32])
def test_adversarial_logits_keep_their_largest(head, logits, count):
    assert_top(head, torch.eye(4, device=DEVICE), logits.T.contiguous().to(DEVICE), count)


@pytest.mark.usefixtures("chunks")
def test_ruled_out_rows_are_never_candidates_and_a_position_without_any_has_no_mass(head):
    case = problem((6, 5, 200, 4), device=DEVICE)
    bias = torch.zeros(200, device=DEVICE)
    bias[::2] = -torch.inf
    ids, logsumexp = head.top_candidates_of(case.hidden, Projection(case.weight, bias), 100)
    assert (ids % 2 == 1).all() and all(len(set(row)) == 100 for row in ids.tolist())
    torch.testing.assert_close(logsumexp, torch.logsumexp(case.hidden @ case.weight[1::2].T, dim=-1))
    ids, logsumexp = head.top_candidates_of(case.hidden, Projection(case.weight, torch.full_like(bias, -torch.inf)), 3)
    assert all(len(set(row)) == 3 for row in ids.tolist()) and bool((logsumexp == -torch.inf).all())


@pytest.mark.parametrize("implementation", [reference, chunked], ids=["reference", "chunked"])
def test_padded_rows_are_neither_candidates_nor_mass(implementation):
    case = problem((6, 5, 20, 4))
    padded = torch.cat([case.weight, torch.full((12, 5), 1e3)])
    bias = torch.cat([case.bias, torch.full((12,), 1e6)])
    trimmed = implementation.top_candidates_of(case.hidden, Projection(padded, bias), 4, vocab_size=20)
    torch.testing.assert_close(trimmed, reference.top_candidates_of(case.hidden, Projection(case.weight, case.bias), 4))


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_does_not_reach_inside(device):
    case = problem((12, 64, 50, 8), device=device)
    expected = chunked.top_candidates_of(case.hidden, Projection(case.weight, case.bias), 8)
    with torch.autocast(device, dtype=torch.bfloat16):
        actual = chunked.top_candidates_of(case.hidden, Projection(case.weight, case.bias), 8)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("device", DEVICES)
def test_a_master_weight_is_rounded_to_the_hidden_states_precision_as_under_autocast(device):
    case = problem((12, 64, 50, 8), device=device)
    hidden = case.hidden.bfloat16()
    actual = chunked.top_candidates_of(hidden, Projection(case.weight, case.bias), 8)
    torch.testing.assert_close(
        actual, reference.top_candidates_of(hidden, Projection(case.weight.bfloat16(), case.bias), 8)
    )


def test_a_half_precision_weight_is_not_rounded_further_by_float32_hidden_states():
    case = problem((12, 64, 50, 8))
    weight = case.weight.bfloat16()
    actual = chunked.top_candidates_of(case.hidden, Projection(weight, case.bias), 8)
    torch.testing.assert_close(
        actual, reference.top_candidates_of(case.hidden, Projection(weight.float(), case.bias), 8)
    )


def test_the_search_leaves_no_graph():
    case = problem((5, 4, 9, 3))
    hidden, weight, bias = case.leaves()
    ids, logsumexp = top_candidates_of(hidden, weight, 3, bias)
    assert not ids.requires_grad and not logsumexp.requires_grad


@pytest.mark.parametrize(("count", "vocab_size", "limit"), [(0, None, 9), (10, None, 9), (7, 6, 6)])
def test_more_candidates_than_tokens_are_refused_with_both_numbers(count, vocab_size, limit):
    case = problem((5, 4, 9, 3))
    with pytest.raises(ValueError, match=rf"num_candidates = {count}\b.*\b{limit}\b"):
        top_candidates_of(case.hidden, case.weight, count, vocab_size=vocab_size)


@pytest.mark.parametrize("vocab_size", [0, 10])
def test_a_vocabulary_that_does_not_fit_the_head_is_refused_with_both_numbers(vocab_size):
    case = problem((5, 4, 9, 3))
    with pytest.raises(ValueError, match=rf"vocab_size = {vocab_size}\b.*\b9\b"):
        top_candidates_of(case.hidden, case.weight, 1, vocab_size=vocab_size)
