"""Multipliers of groups of tokens against the definition, in numpy."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from trustmopd.recipe.rules import DomainNormalised, EqualShares
from trustmopd.training.step import GroupEmphasis, ask, candidates_of, objective_of

pytestmark = pytest.mark.unit

TEACHERS = ["math", "code", "if"]
MU = torch.tensor([0.5, 1.0, 2.0])


@pytest.fixture
def step(context_of, batch_of_lengths, family):
    context = context_of()
    batch = ask(context, batch_of_lengths())
    scored = candidates_of(context, family.base, batch, step=1)
    return batch, scored.at, objective_of(context, scored, batch, MU)


def multipliers(rule, at, result, batch, parts=1):
    emphasis = GroupEmphasis(rule, TEACHERS)
    emphasis.note(at, result, batch)
    logged = emphasis.finish(Accelerator(cpu=True))
    assert emphasis.of(batch)(at, result.weights).shape == at.mask.shape
    return emphasis.multipliers.numpy(), logged


def tokens(at, result):
    """Response, group (the leader), share of the mean over responses, and log target − log student, by token."""
    for b, t in np.argwhere(at.mask.numpy()):
        leader, count = int(result.weights[:, b, t].argmax()), int(at.mask[b].sum())
        place = (at.candidate_ids[b, t] == at.sampled_ids[b, t]).nonzero()
        gap = None
        if len(place):
            gap = float(result.target_logp[b, t, place[0, 0]] - at.student_logp.detach()[b, t, place[0, 0]])
        yield leader, 1 / count, gap


def test_deviations_are_over_the_sampled_tokens_that_are_candidates(step):
    batch, at, result = step
    found, logged = multipliers(DomainNormalised(by="leader"), at, result, batch)
    seen = list(tokens(at, result))
    assert any(gap is None for *_, gap in seen) and any(gap is not None for *_, gap in seen)
    of_all = np.std([gap for *_, gap in seen if gap is not None])
    expected, share = np.ones(4), np.zeros(4)
    for group in range(3):
        own = [gap for leader, _, gap in seen if leader == group and gap is not None]
        share[group] = sum(part for leader, part, _ in seen if leader == group)
        if len(own) > 1:
            expected[group] = np.clip(of_all / np.std(own), 0.25, 4)
    expected /= (expected * share / share.sum()).sum()
    assert found == pytest.approx(expected, rel=1e-6)
    assert logged == pytest.approx(
        {f"emphasis/{n}": m for n, m, s in zip(TEACHERS, expected, share, strict=False) if s}
    )


def test_equal_shares_give_every_group_that_is_there_the_same_part_of_the_loss(step):
    batch, at, result = step
    found, _ = multipliers(EqualShares(by="leader"), at, result, batch)
    share = np.zeros(3)
    for leader, part, _ in tokens(at, result):
        share[leader] += part
    parts = (found[:3] * share)[share > 0]
    assert parts == pytest.approx(np.full(len(parts), parts[0])) and parts.sum() == pytest.approx(share.sum())


def test_prompts_without_a_teachers_label_are_a_group_of_their_own(step):
    batch, at, result = step
    found, logged = multipliers(EqualShares(), at, result, batch)
    assert [*logged] == ["emphasis/others"] and found[3] == pytest.approx(1)


def test_the_first_step_counts_every_token_alike_and_a_checkpoint_keeps_the_multipliers(step):
    batch, at, result = step
    emphasis = GroupEmphasis(EqualShares(by="leader"), TEACHERS)
    assert (emphasis.of(batch)(at, result.weights) == 1).all()
    emphasis.note(at, result, batch)
    emphasis.finish(Accelerator(cpu=True))
    other = GroupEmphasis(EqualShares(by="leader"), TEACHERS)
    other.resume({"GroupEmphasis": emphasis.state()})
    assert torch.equal(other.multipliers, emphasis.multipliers) and not (other.multipliers == 1).all()
