"""The Triton kernels against the plain computation: on a GPU where there is one, in Triton's interpreter elsewhere."""

import random
import warnings

import pytest
import torch
from problems import DEVICE, SHAPES, TRANSFORMS, assert_agree, assert_top, problem, values_and_gradients

from trustmopd.heads import candidate_logits, chunked, dispatch, reference, shared, top_candidates_of
from trustmopd.heads.shared import _bias_gradient

pytest.importorskip("triton")
from trustmopd.heads import fused
from trustmopd.heads.shared import Projection

ODD = [(5, 33, 131, 7), (3, 130, 77, 65)]
HALVES = [torch.bfloat16, torch.float16]
# Triton's interpreter takes about a second a case: every shape in float32, every precision on odd shapes.
CASES = [(shape, torch.float32) for shape in SHAPES + ODD] + [(shape, dtype) for shape in ODD for dtype in HALVES]
WIDE = [(4, 9, 3001, 128), (2, 16, 2049, 300), (2, 5, 1500, 1024)]


@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_values_and_gradients_are_those_of_the_plain_computation(shape, dtype):
    assert_agree(fused, problem(shape, dtype, device=DEVICE), logit_scale=0.5, softcap=4.0)


def test_a_head_without_bias_agrees_too():
    assert_agree(fused, problem((5, 33, 131, 7), bias=False, device=DEVICE))


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_scale_and_soft_cap_are_differentiated_through(transform):
    assert_agree(fused, problem((13, 8, 37, 5), device=DEVICE), **transform)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("shape", [(31, 96, 101, 13), *ODD], ids=str)
def test_gradients_are_close_to_float64(shape, dtype, bound):
    case = problem(shape, dtype, device=DEVICE)
    exact = type(case)(case.hidden.double(), case.weight.double(), case.bias.double(), case.ids, case.upstream.double())
    _, grads = values_and_gradients(fused, case, softcap=9.0)
    _, expected = values_and_gradients(reference, exact, softcap=9.0)
    for grad, truth in zip(grads, expected, strict=True):
        assert (grad.double() - truth).norm() / truth.norm() < bound


@pytest.mark.parametrize("seed", range(10))
def test_any_shape_agrees(seed, monkeypatch):
    """Drawn by hand: under hypothesis, which traces every line, Triton's interpreter takes minutes."""
    draw = random.Random(seed)
    vocab_size = draw.randint(1, 60)
    shape = (draw.randint(0, 9), draw.randint(1, 40), vocab_size, draw.randint(1, vocab_size))
    case = problem(shape, bias=draw.random() < 0.5, seed=seed, device=DEVICE)
    transform = draw.choice(TRANSFORMS)
    assert_agree(fused, case, **transform)
    monkeypatch.setattr(fused, "COLUMNS", draw.choice([128, 512, 4096]))
    monkeypatch.setattr(fused, "BLOCK_BYTES", draw.randint(1, 5000))
    kept = draw.randint(shape[3], vocab_size)
    assert_top(fused, case.hidden, case.weight, shape[3], case.bias, vocab_size=kept, **transform)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize(("shape", "dtype"), [*CASES, *((shape, torch.bfloat16) for shape in WIDE)], ids=str)
def test_top_candidates_have_the_largest_logits_and_the_partition_is_over_all(shape, dtype):
    case = problem(shape, dtype, device=DEVICE)
    assert_top(fused, case.hidden, case.weight, shape[3])


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_bias_scale_and_cap_come_before_the_choice(transform):
    case = problem((4, 9, 600, 20), device=DEVICE)
    assert_top(fused, case.hidden, case.weight, 20, case.bias, **transform)


@pytest.mark.usefixtures("chunks")
def test_the_largest_may_all_lie_in_one_group_or_one_in_each():
    crowded, spread = torch.zeros(2000), torch.zeros(2000)
    crowded[640:660] = torch.arange(20.0) + 1
    spread[::100] = torch.arange(20.0) + 1
    weight = torch.stack([crowded, spread], dim=1).to(DEVICE)
    ids, _ = fused.top_candidates_of(torch.eye(2, device=DEVICE), Projection(weight), 20)
    assert sorted(ids[0].tolist()) == list(range(640, 660))
    assert sorted(ids[1].tolist()) == list(range(0, 2000, 100))


@pytest.mark.parametrize("many", [0, 3, 9])
def test_rows_that_many_tokens_choose_are_summed_like_the_others(many, monkeypatch):
    monkeypatch.setattr(fused, "MANY", many)
    case = problem((40, 5, 30, 7), device=DEVICE)
    case.ids[:, :2] = torch.tensor([11, 29])  # chosen by all; others by a few, or by nobody
    case.ids[:, 2:] = case.ids[:, 2:] % 8
    assert_agree(fused, case)


def test_gradients_are_the_same_bit_for_bit_in_every_run():
    case = problem((40, 24, 9, 7), torch.bfloat16, device=DEVICE)
    first, second = (values_and_gradients(fused, case)[1] for _ in range(2))
    assert len(first) == 3 and all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_a_bias_gradient_of_many_choices_is_added_up_in_one_order():
    """Enough of them that torch adds in parallel, where there are two threads to do so."""
    torch.manual_seed(0)
    grad = torch.randn((4096, 128), device=DEVICE)
    ids, bias = torch.randint(1000, grad.shape, device=DEVICE), torch.zeros(1000, device=DEVICE)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first, *others = (_bias_gradient(grad, ids, bias) for _ in range(30))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(first, other) for other in others)
    exact = torch.zeros(1000, dtype=torch.float64).index_add_(0, ids.cpu().reshape(-1), grad.cpu().double().reshape(-1))
    torch.testing.assert_close(first.cpu().double(), exact, rtol=1e-4, atol=1e-3)


def test_half_precision_hidden_states_meet_a_float32_master_weight_without_rounding_it():
    case = problem((7, 64, 50, 8), device=DEVICE)
    hidden = case.hidden.bfloat16()
    logits = fused.candidate_logits(hidden, Projection(case.weight, case.bias), case.ids)
    expected = reference.candidate_logits(
        hidden.double(), Projection(case.weight.double(), case.bias.double()), case.ids
    )
    torch.testing.assert_close(logits, expected.float(), rtol=1e-5, atol=1e-4)
    top = fused.top_candidates_of(hidden, Projection(case.weight), 8)
    assert_same_top(top, reference.top_candidates_of(hidden, Projection(case.weight.bfloat16()), 8))


def assert_same_top(actual, expected):
    assert [sorted(row) for row in actual[0].tolist()] == [sorted(row) for row in expected[0].tolist()]
    torch.testing.assert_close(actual[1], expected[1])


def test_a_bias_that_is_a_view_is_read_as_it_stands():
    case = problem((5, 6, 40, 4), device=DEVICE)
    strided = torch.stack([5 * case.bias, torch.zeros_like(case.bias)], dim=1).flatten()[::2]
    assert_top(fused, case.hidden, case.weight, 4, strided)


@pytest.mark.parametrize("bad", [-1, 17])
def test_an_id_that_the_head_has_no_row_for_is_refused(bad):
    case = problem((5, 6, 17, 4), device=DEVICE)
    case.ids[2, 1] = bad
    with dispatch.use_implementation("fused"), pytest.raises(IndexError, match=r"\b17\b"):
        candidate_logits(case.hidden, case.weight, case.ids)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda case: {"num_candidates": 1025}, "C = 1025 is over their limit of 1024"),
        (lambda case: {"hidden": case.hidden.double()}, "do not multiply torch.float64"),
        (lambda case: {"weight": case.weight.T.contiguous().T}, "not contiguous"),
    ],
    ids=["candidates", "float64", "transposed"],
)
def test_what_the_kernels_cannot_take_goes_to_the_chunked_head_and_is_said_once(change, why):
    case = problem((2, 4, 1100, 3), device=DEVICE)
    given = {"hidden": case.hidden, "weight": case.weight, "num_candidates": 3, **change(case)}
    dispatch._say_once.cache_clear()
    with dispatch.use_implementation("fused"):
        with pytest.warns(UserWarning, match=why):
            found = top_candidates_of(**given)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            top_candidates_of(**given)
    head = Projection(given["weight"])
    torch.testing.assert_close(found, chunked.top_candidates_of(given["hidden"], head, given["num_candidates"]))


def test_without_triton_the_chunked_head_answers_and_it_is_said_once(monkeypatch):
    case = problem((2, 4, 11, 3), device=DEVICE)
    monkeypatch.setattr(dispatch, "_module", lambda name: None)
    dispatch._say_once.cache_clear()
    with dispatch.use_implementation("fused"), pytest.warns(UserWarning, match="Triton"):
        found = candidate_logits(case.hidden, case.weight, case.ids)
    torch.testing.assert_close(found, chunked.candidate_logits(case.hidden, Projection(case.weight), case.ids))


def test_no_operation_returns_all_tokens_by_the_whole_vocabulary(monkeypatch):
    from test_memory import largest_allocation

    monkeypatch.setattr(fused, "BLOCK_BYTES", 2**12)
    monkeypatch.setattr(shared, "TILE_BYTES", 2**12)
    assert largest_allocation(fused, problem((32, 4, 128, 4), device=DEVICE)) <= 2**12
