"""The student's candidates with every policy's log-probabilities, against full logits of each response in float64."""

import copy
from dataclasses import replace

import pytest
import torch

from trustmopd.policies import REFERENCE
from trustmopd.training.step import ask, candidates_of

pytestmark = pytest.mark.unit


def full_logp(model, batch, row):
    """Over the vocabulary, at each response token of a row."""
    sequence, mask = (each[row] for each in batch.sequences)
    tokens = int(batch.mask[row].sum())
    with torch.no_grad():
        logits = copy.deepcopy(model).double()(sequence[mask != 0][None]).logits[0]
    return logits[len(logits) - 1 - tokens : -1].log_softmax(dim=-1)


def check(scored, batch, student, teachers, references, temperature=1.0):
    at = scored.at
    for row, tokens in enumerate(batch.mask.sum(dim=1).tolist()):
        own = full_logp(student, batch, row)
        ids = at.candidate_ids[row, :tokens]
        assert torch.equal(ids.sort().values, own.topk(ids.shape[1]).indices.sort().values)

        def on_candidates(model, row=row, ids=ids):
            logits = full_logp(model, batch, row).gather(-1, ids) / temperature
            return logits.log_softmax(dim=-1).float()

        def assert_close(found, model):
            torch.testing.assert_close(found, on_candidates(model), rtol=1e-4, atol=1e-4)

        assert_close(at.student_logp[row, :tokens], student)
        for k, teacher in enumerate(teachers):
            assert_close(at.teacher_logp[k, row, :tokens], teacher)
        for k, reference in enumerate(references):
            each = at.reference_logp if at.reference_logp.ndim == 3 else at.reference_logp[k]
            assert_close(each[row, :tokens], reference)
        mass = own.gather(-1, ids).exp().sum(dim=-1).float()
        torch.testing.assert_close(scored.student_mass[row, :tokens], mass, rtol=1e-4, atol=1e-4)
    assert not scored.student_mass[batch.mask == 0].any()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_those_of_full_logits_on_the_students_candidates(
    context_of, batch_of_lengths, family, temperature
):
    context = context_of(distillation_temperature=temperature)
    batch = ask(context, batch_of_lengths())
    student = family.specialists["if"]  # no longer the one that wrote
    scored = candidates_of(context, student, batch, step=1)
    check(scored, batch, student, family.specialists.values(), [family.base], temperature)
    assert scored.sampled_logp is None


def test_teachers_may_have_references_of_their_own(context_of, batch_of_lengths, family, pool):
    other = f"{REFERENCE}:code"
    pool.models = {**pool.models, other: family.specialists["if"]}
    pool.references = {"math": REFERENCE, "code": other, "if": other}
    context = context_of()
    batch = ask(context, batch_of_lengths())
    scored = candidates_of(context, family.base, batch, step=1)
    references = [family.base, family.specialists["if"], family.specialists["if"]]
    check(scored, batch, family.base, family.specialists.values(), references)


@pytest.mark.parametrize("budget", [None, 64])
def test_a_part_has_the_log_probabilities_of_its_rows(context_of, batch_of_lengths, family, budget):
    context = context_of(max_tokens_per_micro_batch=budget)
    batch = ask(context, batch_of_lengths())
    whole = candidates_of(context, family.base, batch, step=1).at
    part = batch.part([4, 0])
    found = candidates_of(context, family.base, part.trimmed() if budget else part, step=1).at
    for b, row in enumerate((4, 0)):
        tokens = int(batch.mask[row].sum())
        torch.testing.assert_close(found.teacher_logp[:, b, :tokens], whole.teacher_logp[:, row, :tokens])
        torch.testing.assert_close(found.student_logp[b, :tokens], whole.student_logp[row, :tokens])


def test_the_students_own_log_probabilities_are_there_where_the_engine_gave_some(context_of, batch_of_lengths, family):
    context = context_of()
    batch = ask(context, batch_of_lengths(engine_logp=torch.zeros(5, 7)))
    scored = candidates_of(context, family.base, batch, step=1)
    expected = [full_logp(family.base, batch, row) for row in range(5)]
    sampled = [logp.gather(-1, batch.response_ids[row, : len(logp), None])[:, 0] for row, logp in enumerate(expected)]
    torch.testing.assert_close(scored.sampled_logp, torch.cat(sampled).float(), rtol=1e-4, atol=1e-4)


def test_a_teacher_that_was_not_asked_about_a_row_says_nothing_there(context_of, batch_of_lengths, family):
    context = context_of(allocation="routed")
    batch = ask(context, batch_of_lengths(teachers=[1, 0, 1, 1, 1]))
    at = candidates_of(context, family.base, batch, step=1).at
    flat = torch.zeros(context.args.num_candidates).log_softmax(dim=-1)
    torch.testing.assert_close(at.teacher_logp[0, 2, 6], flat)
    assert (at.teacher_logp[0, 1, 0] - flat).abs().max() > 0.01
    assert (at.teacher_logp[1, 2, 6] - flat).abs().max() > 0.01


@pytest.mark.parametrize(("name", "who"), [("code", "teacher 'code'"), (REFERENCE, "the reference")])
def test_a_policy_that_gives_nan_is_named_with_the_step(context_of, batch_of_lengths, family, pool, name, who):
    broken = copy.deepcopy(pool.models[name])
    broken.model.norm.weight.data[0] = float("nan")
    pool.models = {**pool.models, name: broken}
    context = context_of()
    with pytest.raises(FloatingPointError, match=rf"{who} .*step 3, on 16 of 16"):
        candidates_of(context, family.base, ask(context, batch_of_lengths()), step=3)


def test_only_the_student_learns(context_of, batch_of_lengths, family):
    context, student = context_of(), copy.deepcopy(family.base)
    batch = ask(context, batch_of_lengths())
    at = candidates_of(context, student, batch, step=1).at
    assert at.student_logp.requires_grad
    assert not at.teacher_logp.requires_grad and not at.reference_logp.requires_grad
    again = candidates_of(context, student, replace(batch, rollouts=batch.rollouts[::-1]), step=1).at
    assert torch.equal(again.student_logp, at.student_logp)
