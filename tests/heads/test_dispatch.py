"""What does not fit is told before any kernel runs, whatever the implementation."""

import pytest
import torch
from problems import problem

from trustmopd.heads import candidate_logits, dispatch, top_candidates_of, use_implementation

pytestmark = pytest.mark.unit


def test_hidden_states_of_another_width_are_refused():
    case = problem((5, 6, 17, 4))
    with pytest.raises(ValueError, match=r"\b5\b.*\b6\b"):
        candidate_logits(case.hidden[:, :5], case.weight, case.ids)
    with pytest.raises(ValueError, match=r"\b5\b.*\b6\b"):
        top_candidates_of(case.hidden[:, :5], case.weight, 4)


def test_candidates_of_another_number_of_tokens_are_refused():
    case = problem((5, 6, 17, 4))
    with pytest.raises(ValueError, match=r"hidden has shape \(5, 6\).*ids has shape \(4, 4\)"):
        candidate_logits(case.hidden, case.weight, case.ids[:4])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden": torch.zeros(1, 3, 4)}, r"hidden has shape \(1, 3, 4\)"),
        ({"ids": torch.zeros(3, dtype=torch.long)}, r"ids has shape \(3,\)"),
        ({"bias": torch.zeros(5)}, r"weight has shape \(6, 4\), bias has shape \(5,\)"),
        ({"hidden": torch.zeros(3, 4, dtype=torch.long)}, "hidden.*torch.int64"),
        ({"ids": torch.full((3, 2), 0.5)}, "ids.*torch.float32.*torch.int64"),
        ({"ids": torch.zeros(3, 2, dtype=torch.bool)}, "ids.*torch.bool"),
    ],
    ids=["hidden", "ids", "bias", "whole numbers", "fractions", "bool"],
)
@pytest.mark.parametrize("name", ["auto", "fused", "reference"])
def test_shapes_and_types_that_a_kernel_would_misread_are_refused(change, said, name):
    given = {"hidden": torch.zeros(3, 4), "weight": torch.zeros(6, 4), "ids": torch.zeros(3, 2, dtype=torch.long)}
    with use_implementation(name), pytest.raises(ValueError, match=said):
        candidate_logits(**{**given, **change})


@pytest.mark.parametrize("name", ["chunked", "fused", "reference"])
def test_no_candidates_have_no_logits_and_no_gradients(name):
    case = problem((5, 6, 17, 4))
    hidden = case.hidden.detach().requires_grad_()
    with use_implementation(name):
        logits = candidate_logits(hidden, case.weight, case.ids[:, :0], case.bias)
    logits.sum().backward()
    assert logits.shape == (5, 0) and not hidden.grad.any()


def test_tensors_on_two_devices_are_refused():
    case = problem((5, 6, 17, 4))
    with pytest.raises(ValueError, match="meta.*cpu"):
        candidate_logits(case.hidden, case.weight.to("meta"), case.ids)


def test_a_cpu_is_served_by_the_chunked_head_without_a_word(recwarn):
    case = problem((5, 6, 17, 4))
    assert dispatch._implementation_for(case.hidden, case.weight, 4).__name__.endswith("chunked")
    assert not recwarn.list


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_served_by_the_fused_head():
    case = problem((5, 6, 17, 4), device="cuda")
    assert dispatch._implementation_for(case.hidden, case.weight, 4).__name__.endswith("fused")
