"""Metrics by domain, leading teacher and position, and those of recorded rollouts. Labels teach nothing."""

from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator

from trustmopd.recipe.rules import RULES
from trustmopd.training.step import ask, candidates_of, loss_of, objective_of
from trustmopd.training.step.groups import GroupTotals
from trustmopd.training.step.inspect import cancelled, inspected, spread
from trustmopd.training.step.note import repetition

pytestmark = pytest.mark.unit

MU = torch.tensor([0.5, 1.0, 2.0])
LABELS = ("math", "code", None, "if", "poetry")


def labelled(batch, labels=LABELS):
    rollouts = [replace(each, domain=label) for each, label in zip(batch.rollouts, labels, strict=True)]
    return replace(batch, rollouts=tuple(rollouts))


@pytest.fixture
def step_of(family, context_of, batch_of_lengths):
    def make(labels=LABELS, **settings):
        context = context_of(**settings)
        batch = ask(context, labelled(batch_of_lengths(), labels))
        scored = candidates_of(context, family.base, batch, step=1)
        return context, batch, scored, objective_of(context, scored, batch, MU)

    return make


def totals_of(context, batch, scored, result, *parts):
    totals = GroupTotals([*context.pool.teachers, "idle"], longest=7, device=torch.device("cpu"))
    totals.note(scored, result, batch, context.pool.teachers)
    return totals.finish(Accelerator(cpu=True))


def test_shares_lengths_and_gaps_by_domain_are_those_of_plain_loops(step_of):
    context, batch, scored, result = step_of()
    found = totals_of(context, batch, scored, result)
    student = scored.at.student_logp.detach().double().requires_grad_()
    target = result.target_logp.double()
    logp = student.log_softmax(dim=-1)
    loss = (logp.exp() * (logp - target)).sum(dim=-1)
    (slope,) = torch.autograd.grad(loss.sum(), student)
    rows = {"math": [0], "code": [1], "others": [2, 4]}  # the row of "if" is empty
    lengths = [5, 1, 7, 0, 3]

    def over(rows, values):
        return sum(float(values[row, :n].detach().sum()) / n for row in rows if (n := lengths[row]))

    everyone = [row for some in rows.values() for row in some]
    for name, own in rows.items():
        assert found[f"domain/{name}/prompts"] == pytest.approx(len(own) / 4)
        assert found[f"domain/{name}/tokens"] == pytest.approx(sum(lengths[row] for row in own) / 16)
        assert found[f"domain/{name}/length"] == pytest.approx(sum(lengths[row] for row in own) / len(own))
        for what, values in {"loss": loss, "gradient": slope.norm(dim=-1)}.items():
            expected = over(own, values) / over(everyone, values)
            assert found[f"domain/{name}/{what}"] == pytest.approx(expected, rel=1e-4)
        gap = (logp.exp() - target.exp()).abs().sum(dim=-1) / 2
        expected = sum(float(gap[row, : lengths[row]].detach().sum()) for row in own) / sum(lengths[row] for row in own)
        assert found[f"domain/{name}/gap"] == pytest.approx(expected, rel=1e-4)
    assert found["domain/others/clipped"] == pytest.approx(1 / 2) and found["domain/math/clipped"] == 0
    assert "domain/if/loss" not in found and "domain/idle/loss" not in found


def test_the_leader_of_a_token_has_its_loss_and_a_tie_has_none(step_of):
    context, batch, scored, result = step_of()
    weights = torch.zeros_like(result.weights)
    weights[0, 0], weights[2, 1:] = 1, 1
    found = totals_of(context, batch, scored, replace(result, weights=weights))
    names = context.pool.teachers
    assert found[f"leader/{names[0]}/tokens"] == pytest.approx(5 / 16)
    assert found[f"leader/{names[2]}/prompts"] == pytest.approx(3 / 4)
    assert f"leader/{names[1]}/loss" not in found
    even = totals_of(context, batch, scored, replace(result, weights=torch.full_like(weights, 1 / 3)))
    assert not any(name.startswith("leader/") for name in even)


def test_a_masked_group_has_no_share_of_the_gradient(step_of):
    context, batch, scored, result = step_of()
    weights = result.weights.clone()
    weights[:, 1] = 0
    found = totals_of(context, batch, scored, replace(result, weights=weights))
    assert found["domain/code/gradient"] == 0 and found["domain/code/prompts"] == pytest.approx(0.25)


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.labelled])
def test_labels_change_neither_loss_nor_gradient_of_a_rule_without_labels(family, step_of, rule):
    found = []
    for labels in (LABELS, (None,) * 5, ("if", "if", "math", "code", "code")):
        family.base.zero_grad()
        allocation = {"rule": rule, **({"teacher": "math"} if rule == "single" else {})}
        _, batch, _, result = step_of(labels, allocation=allocation)
        loss = loss_of(result, batch, 4, 1)
        loss.backward()
        found.append((loss.detach(), torch.cat([p.grad.flatten() for p in family.base.parameters()])))
    family.base.zero_grad()
    for loss, gradient in found[1:]:
        assert torch.equal(loss, found[0][0]) and torch.equal(gradient, found[0][1])


def recorded(batch, rows):
    rollouts = [replace(each, recorded=row in rows) for row, each in enumerate(batch.rollouts)]
    return replace(batch, rollouts=tuple(rollouts))


def test_overlap_and_mass_of_recorded_rollouts_are_those_of_full_logits(family, step_of):
    context, batch, scored, result = step_of()
    batch = recorded(batch, [0, 3, 4])
    found = inspected(scored, result, batch, context.pool.teachers)
    for name in context.pool.teachers:
        overlaps, masses = [], []
        for row, length in ((0, 5), (4, 3)):
            ids = torch.cat([batch.prompt_ids[row][batch.prompt_mask[row] != 0], batch.response_ids[row, :length]])
            logits = family.specialists[name](ids[None]).logits[0, -length - 1 : -1].double()
            candidates = scored.at.candidate_ids[row, :length]
            for at in range(length):
                top = set(logits[at].topk(12).indices.tolist())
                overlaps.append(len(top & set(candidates[at].tolist())) / 12)
                masses.append(float(logits[at].detach().softmax(-1)[candidates[at]].sum()))
        assert found[f"overlap/{name}"].tolist() == pytest.approx(overlaps)
        assert found[f"teacher_mass/{name}"].tolist() == pytest.approx(masses, rel=1e-4)
        assert len(found[f"teacher_entropy/{name}"]) == 8
    assert len(found["conflict/spread"]) == len(found["target_entropy"]) == 8 >= len(found["conflict/cancelled"])


def test_without_a_recorded_rollout_a_process_has_the_same_metrics_and_no_values(step_of):
    context, batch, scored, result = step_of()
    names = context.pool.teachers
    none = inspected(scored, result, recorded(batch, []), names)
    assert none.keys() == inspected(scored, result, recorded(batch, [1]), names).keys()
    assert all(len(values) == 0 for values in none.values())


def test_two_opposed_teachers_cancel_and_two_that_agree_do_not():
    reference = torch.randn(6, 8, dtype=torch.float64)
    change = 2 * torch.randn(6, 8, dtype=torch.float64)

    def of(*changes):
        teachers = torch.stack([reference + each for each in changes])
        weights = torch.full((len(changes), 6), 1 / len(changes), dtype=torch.float64)
        target = (weights[..., None] * teachers).sum(dim=0).log_softmax(dim=-1)
        start = reference.log_softmax(dim=-1).expand_as(teachers)
        return cancelled(teachers.log_softmax(dim=-1), start, weights, target)

    assert of(change, -change).tolist() == [1] * 6
    assert of(change, change).tolist() == [0] * 6
    assert of(0 * change, 0 * change).tolist() == []


def test_spread_is_that_of_the_students_first_choice():
    student = torch.tensor([[0.1, 0.7, 0.2]]).log()
    teachers = torch.tensor([[[0.1, 0.8, 0.1]], [[0.4, 0.2, 0.4]]]).log()
    expected = abs(torch.tensor(0.8).log() - torch.tensor(0.2).log()) / 2
    assert float(spread(student, teachers)[0]) == pytest.approx(float(expected))


def test_repetition_is_the_share_of_ngrams_that_came_before():
    ids = torch.tensor([[5, 5, 5, 5, 5, 5], [1, 2, 3, 4, 5, 6], [7, 8, 7, 8, 7, 8], [9, 9, 9, 0, 0, 0]])
    attended = torch.tensor([[1] * 6, [1] * 6, [1] * 6, [1, 1, 1, 0, 0, 0]])
    assert repetition(ids, attended).tolist() == pytest.approx([2 / 3, 0, 1 / 3])
    assert repetition(ids[:, :3], attended[:, :3]).numel() == 0
