"""The objective as one kernel against the method's functions in float64, which the tests of `method/` hold against the
paper's equations."""

import copy
import dataclasses

import pytest
import torch

from trustmopd.heads import dispatch, trust_objective, use_implementation
from trustmopd.method import SCORES, CandidateState, objective, renormalise, trust

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# K, B, T, C
SHAPES = [(3, 2, 3, 16), (1, 1, 4, 7), (5, 2, 1, 100), (2, 3, 2, 1), (3, 1, 2, 1000), (3, 1, 2, 1024), (17, 1, 1, 5)]


def state(shape, seed=0, apart=1.0, own_references=False):
    """Relatives: each teacher is the reference, or its own, moved by `apart`."""
    num_teachers, *tokens, num_candidates = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*leading):
        return torch.randn(*leading, *tokens, num_candidates, generator=generator, dtype=torch.float64)

    reference = 3 * normal(*[num_teachers] * own_references)
    mask = torch.ones(tokens)
    mask[-1, -1] = 0
    return CandidateState(
        student_logp=renormalise((reference[0] if own_references else reference) + normal()),
        teacher_logp=renormalise(reference + apart * normal(num_teachers)),
        reference_logp=renormalise(reference),
        candidate_ids=torch.arange(num_candidates).expand(*tokens, -1),
        sampled_ids=torch.zeros(tokens, dtype=torch.long),
        mask=mask,
    )


def narrow(at):
    """The same in float32, where the kernel runs."""
    fields = {name: x.to(DEVICE) for name, x in vars(at).items() if x is not None}
    return CandidateState(**{name: x.float() if x.is_floating_point() else x for name, x in fields.items()})


def by_kernel(at, mu, gamma=7.0):
    with use_implementation("fused"):
        return trust_objective(at, mu, gamma)


def wide(at):
    """The kernel's own inputs in float64."""
    fields = {name: x.cpu() for name, x in vars(at).items() if x is not None}
    return CandidateState(**{name: x.double() if x.is_floating_point() else x for name, x in fields.items()})


def assert_agrees(at, mu=None, gamma=7.0):
    ours = narrow(at)
    student = ours.student_logp.cpu().double().requires_grad_()
    exact = dataclasses.replace(wide(ours), student_logp=student)
    expected = objective(exact, trust(gamma), SCORES["displacement"], mu)
    upstream = torch.rand_like(expected.token_loss)
    expected.token_loss.backward(upstream)
    leaf = ours.student_logp.clone().requires_grad_()
    found = by_kernel(dataclasses.replace(ours, student_logp=leaf), None if mu is None else mu.to(DEVICE), gamma)
    found.token_loss.backward(upstream.float().to(DEVICE))
    for name in ("token_loss", "weights", "scores", "target_logp"):
        torch.testing.assert_close(
            getattr(found, name).detach().cpu().double(), getattr(expected, name).detach(), rtol=2e-5, atol=2e-5
        )
    assert torch.equal(found.degenerate.cpu(), expected.degenerate)
    torch.testing.assert_close(leaf.grad.cpu().double(), student.grad, rtol=2e-5, atol=2e-6)
    return found


@pytest.mark.parametrize("own_references", [False, True], ids=["one reference", "own references"])
@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_losses_weights_target_and_gradient_are_those_of_the_method(shape, calibrated, own_references):
    mu = torch.rand(shape[0], dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.2
    assert_agrees(state(shape, own_references=own_references), mu if calibrated else None)


def test_own_references_that_are_all_the_common_one_change_no_bit():
    at = narrow(state((3, 2, 3, 16)))
    for_each = dataclasses.replace(at, reference_logp=at.reference_logp.expand_as(at.teacher_logp))
    ours, theirs = by_kernel(for_each, None), by_kernel(at, None)
    for name in ("token_loss", "weights", "scores", "target_logp"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


@pytest.mark.parametrize("gamma", [0.5, 3, 9.0, 40.0])
@pytest.mark.parametrize("apart", [1e-3, 8.0])
def test_any_exponent_and_any_distance(gamma, apart):
    assert_agrees(state((3, 2, 2, 33), apart=apart), gamma=gamma)


def test_a_teacher_that_has_not_moved_gets_nothing_and_where_none_has_all_get_the_same():
    at = state((3, 1, 3, 8))
    at.teacher_logp[1, 0, 0] = at.reference_logp[0, 0]
    at.teacher_logp[:, 0, 1] = at.reference_logp[0, 1]
    found = assert_agrees(at)
    assert found.weights[1, 0, 0] == 0
    assert found.weights[:, 0, 1].tolist() == pytest.approx([1 / 3] * 3)
    assert found.degenerate.tolist() == [[False, True, False]]


def test_nothing_but_the_student_learns_and_without_gradient_none_is_formed():
    at = narrow(state((2, 1, 2, 8)))
    at.teacher_logp.requires_grad_()
    found = by_kernel(at, None)
    assert not any(x.requires_grad for x in (found.token_loss, found.weights, found.scores, found.target_logp))


def test_other_layouts_and_no_tokens_at_all():
    at = narrow(state((3, 2, 4, 9)))
    turned = dataclasses.replace(at, teacher_logp=at.teacher_logp.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0))
    assert torch.equal(by_kernel(turned, None).token_loss, by_kernel(at, None).token_loss)
    mu = torch.tensor([1.0, 9.0, 2.0, 9.0, 0.5, 9.0], device=DEVICE)
    assert torch.equal(by_kernel(at, mu[::2]).weights, by_kernel(at, mu[::2].clone()).weights)
    leaves = [at.student_logp.clone(), at.student_logp.transpose(0, 1).contiguous().transpose(0, 1)]
    for leaf in leaves:
        by_kernel(dataclasses.replace(at, student_logp=leaf.requires_grad_()), None).token_loss.sum().backward()
    assert torch.equal(leaves[0].grad, leaves[1].grad)
    none = narrow(state((3, 1, 1, 4)))
    empty = CandidateState(
        *(x[..., :0, :] for x in (none.student_logp, none.teacher_logp, none.reference_logp, none.candidate_ids)),
        none.sampled_ids[..., :0],
        none.mask[..., :0],
    )
    assert by_kernel(empty, None).token_loss.shape == (1, 0)


def test_a_model_that_gives_nan_gives_a_loss_that_is_nan():
    """The trainer stops at it; a number would be worse."""
    at = narrow(state((2, 1, 2, 8)))
    at.teacher_logp[0, 0, 1, 3] = float("nan")
    assert by_kernel(at, None).token_loss.isnan().tolist() == [[False, True]]


def test_mu_gamma_and_shapes_are_checked_before_the_kernel_reads():
    at = narrow(state((2, 1, 2, 8)))
    short_ones = {"teacher_logp": [at.teacher_logp[..., :7]]}
    short_ones["reference_logp"] = [at.reference_logp[:, :1], at.reference_logp.expand(3, -1, -1, -1)]
    for name, short in ((name, short) for name, given in short_ones.items() for short in given):
        wrong = copy.copy(at)
        object.__setattr__(wrong, name, short)  # the constructor, checked in tests alone, would refuse it
        with pytest.raises(ValueError, match=name):
            dispatch._check_state(wrong, None)
    with pytest.raises(ValueError, match=r"mu.*\(3,\).*\b2\b"):
        by_kernel(at, torch.ones(3, device=DEVICE))
    with pytest.raises(ValueError, match="mu = "):
        by_kernel(at, torch.tensor([1.0, 0.0], device=DEVICE))
    with pytest.raises(ValueError, match="gamma = 0"):
        by_kernel(at, None, 0.0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda at: dataclasses.replace(at, student_logp=at.student_logp.double()), "they take float32"),
        (lambda at: narrow(state((2, 1, 1, 1100))), "C = 1100 is over their limit of 1024"),
        (lambda at: dataclasses.replace(at, speaks=torch.eye(2, device=DEVICE).view(2, 1, 2)), "a teacher is silent"),
    ],
    ids=["float64", "candidates", "silent"],
)
def test_what_the_kernel_cannot_take_goes_to_plain_torch_and_is_said_once(change, why):
    at = change(narrow(state((2, 1, 2, 8))))
    dispatch._say_once.cache_clear()
    with pytest.warns(UserWarning, match=why):
        found = by_kernel(at, None)
    assert torch.equal(found.token_loss, objective(at, trust(7.0), SCORES["displacement"]).token_loss)


def test_without_a_reference_the_error_is_the_methods():
    at = dataclasses.replace(narrow(state((2, 1, 2, 8))), reference_logp=None)
    with pytest.warns(UserWarning, match="reference"), pytest.raises(ValueError, match="reference_logp"):
        by_kernel(at, None)


def test_on_a_cpu_the_methods_own_functions_are_used():
    at = CandidateState(**{f.name: getattr(state((3, 2, 3, 16)), f.name) for f in dataclasses.fields(CandidateState)})
    found, expected = trust_objective(at, None, 7.0), objective(at, trust(7.0), SCORES["displacement"])
    assert torch.equal(found.token_loss, expected.token_loss)
