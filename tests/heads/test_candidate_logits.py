"""Candidate logits: the chunked computation is the plain one, in values and gradients, whatever surrounds it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import DEVICE, DEVICES, SHAPES, TOLERANCE, TRANSFORMS, assert_agree, problem, values_and_gradients
from torch.utils.checkpoint import checkpoint

from trustmopd.heads import candidate_logits, chunked, reference, use_implementation
from trustmopd.heads.shared import Projection

pytestmark = pytest.mark.unit

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gathering_rows_and_reading_them_in_place_agree(shape, monkeypatch):
    monkeypatch.setattr(chunked, "_reads_rows_in_place", lambda weight, dtype: False)
    assert_agree(chunked, problem(shape, torch.float64), logit_scale=0.5, softcap=4.0)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_change_neither_values_nor_gradients(shape, dtype, bias, device):
    assert_agree(chunked, problem(shape, dtype, bias=bias, device=device), logit_scale=0.5, softcap=4.0)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_scale_and_soft_cap_are_differentiated_through(transform, device):
    assert_agree(chunked, problem((13, 8, 37, 5), torch.float64, device=device), **transform)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_shape_agrees_with_the_plain_computation(data):
    num_tokens, hidden_size = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 20))
    vocab_size = data.draw(st.integers(1, 60))
    shape = (num_tokens, hidden_size, vocab_size, data.draw(st.integers(1, vocab_size)))
    case = problem(shape, torch.float64, bias=data.draw(st.booleans()), seed=data.draw(st.integers(0, 99)))
    in_place = data.draw(st.booleans())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "_reads_rows_in_place", lambda weight, dtype: in_place)
        patch.setattr(chunked, "ROWS_BYTES", dict.fromkeys(chunked.ROWS_BYTES, data.draw(st.integers(1, 5000))))
        assert_agree(chunked, case, **data.draw(st.sampled_from(TRANSFORMS)))


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_gradients_are_those_of_finite_differences(transform):
    case = problem((3, 4, 7, 3), torch.float64)

    def logits(hidden, weight, bias):
        return chunked.candidate_logits(hidden, Projection(weight, bias, **transform), case.ids)

    assert torch.autograd.gradcheck(logits, case.leaves())


def test_the_scale_comes_before_the_cap():
    hidden, weight, ids = torch.tensor([[2.0]]), torch.tensor([[3.0]]), torch.tensor([[0]])
    logits = candidate_logits(hidden, weight, ids, torch.tensor([1.0]), logit_scale=0.5, softcap=5.0)
    assert logits.item() == pytest.approx(5.0 * torch.tensor(0.5 * (2 * 3 + 1) / 5).tanh().item())


def test_a_candidate_that_appears_twice_collects_both_gradients(head):
    hidden = torch.tensor([[1.0, 2.0], [10.0, 20.0]], device=DEVICE)
    weight = torch.zeros(4, 2, device=DEVICE, requires_grad=True)
    bias = torch.zeros(4, device=DEVICE, requires_grad=True)
    ids = torch.tensor([[3, 3, 0], [0, 3, 3]], device=DEVICE)
    head.candidate_logits(hidden, Projection(weight, bias), ids).sum().backward()
    assert weight.grad.tolist() == [[11.0, 22.0], [0.0, 0.0], [0.0, 0.0], [22.0, 44.0]]
    assert bias.grad.tolist() == [2.0, 0.0, 0.0, 4.0]


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_ways_to_the_weight_gradient_agree(shape, dtype, device):
    case = problem(shape, dtype, device=device)
    ids = torch.cat([case.ids, case.ids], dim=-1)  # every candidate twice
    upstream = torch.cat([case.upstream, case.upstream.sin()], dim=-1)
    by_rows = chunked._weight_gradient_by_rows(upstream, case.hidden, ids, case.weight.shape[0])
    by_blocks = chunked._weight_gradient_by_blocks(upstream, case.hidden, ids, case.weight.shape[0])
    assert by_rows.dtype == by_blocks.dtype == upstream.dtype
    torch.testing.assert_close(by_blocks, by_rows, rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype])


def test_a_frozen_head_gets_no_gradient_and_the_hidden_states_still_get_theirs(head):
    case = problem((9, 6, 17, 4), device=DEVICE)
    hidden, _, _ = case.leaves()
    head.candidate_logits(hidden, Projection(case.weight, case.bias), case.ids).backward(case.upstream)
    _, (expected, _, _) = values_and_gradients(reference, case)
    assert case.weight.grad is None and case.bias.grad is None
    torch.testing.assert_close(hidden.grad, expected, rtol=1e-4, atol=1e-5)


def test_frozen_hidden_states_leave_the_head_its_gradient(head):
    case = problem((9, 6, 17, 4), device=DEVICE)
    _, weight, _ = case.leaves()
    head.candidate_logits(case.hidden, Projection(weight, case.bias), case.ids).backward(case.upstream)
    _, (_, expected, _) = values_and_gradients(reference, case)
    torch.testing.assert_close(weight.grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_does_not_reach_inside(device):
    case = problem((12, 64, 50, 8), device=device)
    expected = values_and_gradients(chunked, case, softcap=9.0)
    with torch.autocast(device, dtype=torch.bfloat16):
        actual = values_and_gradients(chunked, case, softcap=9.0)
    exact = 0.0 if device == "cpu" else 1e-6  # a GPU adds up the bias's gradient in any order
    torch.testing.assert_close(actual, expected, rtol=exact, atol=exact)


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_hidden_states_meet_a_float32_master_weight_without_rounding_it(device):
    case = problem((12, 64, 50, 8), device=device)
    hidden = case.hidden.bfloat16()
    logits = chunked.candidate_logits(hidden, Projection(case.weight, case.bias), case.ids)
    expected = reference.candidate_logits(
        hidden.double(), Projection(case.weight.double(), case.bias.double()), case.ids
    )
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non_reentrant"])
def test_gradient_checkpointing_and_autocast_give_the_same_gradients(head, reentrant):
    case = problem((6, 8, 50, 6), device=DEVICE)

    def loss(hidden, weight, bias):
        return (
            head.candidate_logits(hidden.tanh(), Projection(weight, bias, softcap=4.0), case.ids) * case.upstream
        ).sum()

    plain, checkpointed = case.leaves(), case.leaves()
    loss(*plain).backward()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        checkpoint(loss, *checkpointed, use_reentrant=reentrant).backward()
    for leaf, expected in zip(checkpointed, plain, strict=True):
        torch.testing.assert_close(leaf.grad, expected.grad, rtol=0, atol=0)


def test_a_head_tied_to_the_embedding_collects_both_gradients(head):
    case = problem((12, 8, 50, 6), device=DEVICE)

    def gradient(implementation):
        weight = case.weight.clone().requires_grad_()
        hidden = torch.nn.functional.embedding(torch.arange(12, device=DEVICE), weight).tanh()
        implementation.candidate_logits(hidden, Projection(weight), case.ids).backward(case.upstream)
        return weight.grad

    torch.testing.assert_close(gradient(head), gradient(reference), rtol=1e-4, atol=1e-5)


def test_views_of_larger_tensors_need_no_copy_by_the_caller(head):
    case = problem((12, 16, 50, 6), device=DEVICE)
    hidden, ids = case.hidden.repeat(2, 2)[::2, :16], case.ids.repeat(2, 2)[::2, :6]
    weight = case.weight.T.contiguous().T if head is chunked else case.weight  # the kernels read whole rows
    assert not hidden.is_contiguous() and not ids.is_contiguous()
    assert_agree(head, type(case)(hidden, weight, case.bias, ids, case.upstream.T.contiguous().T))
    assert_agree(head, type(case)(case.hidden, case.weight, case.bias, case.ids.int(), case.upstream))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bad", [-1, 17])
def test_an_id_that_the_head_has_no_row_for_is_refused(bad, dtype):
    case = problem((5, 6, 17, 4), dtype)
    case.ids[2, 1] = bad
    with pytest.raises(IndexError, match=r"out of range|\b17\b"):
        chunked.candidate_logits(case.hidden, Projection(case.weight), case.ids)


def test_the_implementation_in_use_can_be_chosen_for_a_block_or_from_here_on(monkeypatch):
    case = problem((2, 3, 5, 2))
    calls = []
    for module in (reference, chunked):
        original = module.candidate_logits
        monkeypatch.setattr(
            module,
            "candidate_logits",
            lambda *a, _of=original, _name=module.__name__, **k: calls.append(_name) or _of(*a, **k),
        )
    candidate_logits(case.hidden, case.weight, case.ids)
    with use_implementation("reference"):
        candidate_logits(case.hidden, case.weight, case.ids)
    candidate_logits(case.hidden, case.weight, case.ids)
    use_implementation("reference")
    try:
        candidate_logits(case.hidden, case.weight, case.ids)
    finally:
        use_implementation("auto")
    assert [name.rsplit(".")[-1] for name in calls] == ["chunked", "reference", "chunked", "reference"]


def test_an_unknown_implementation_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'fast'.*auto, fused, chunked, reference"):
        use_implementation("fast")
