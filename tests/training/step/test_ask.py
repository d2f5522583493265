"""A batch keeps its own answers: several may be under way at once."""

import pytest
import torch

from trustmopd.policies import REFERENCE
from trustmopd.training.step import ask, candidates_of, objective_of

pytestmark = pytest.mark.unit


def learn(context, student, batch, mu):
    scored = candidates_of(context, student, batch, step=1)
    return scored, objective_of(context, scored, batch, mu)


def test_every_policy_reads_every_row_once(context_of, batch_of_lengths, pool):
    batch = ask(context_of(), batch_of_lengths())
    assert len(pool.questions) == 1
    assert [*batch.answers] == [*pool.models]
    assert all(set(answer.rows) == {*range(5)} for answer in batch.answers.values())
    assert batch.asked == (0, 1, 2, 3, 4)


def test_a_teacher_reads_the_prompts_that_are_routed_to_it(context_of, batch_of_lengths, pool):
    batch = ask(context_of(allocation="routed"), batch_of_lengths(teachers=[2, 0, 0, 2, 2]))
    rows = {name: set(answer.rows) for name, answer in batch.answers.items()}
    assert rows == {"math": {1, 2}, "code": set(), "if": {0, 3, 4}, REFERENCE: {*range(5)}}


def test_the_next_batch_is_asked_while_the_first_is_learnt_from(context_of, batch_of_lengths, family):
    context, mu = context_of(), torch.tensor([0.5, 1.0, 2.0])
    first, second = batch_of_lengths(seed=0), batch_of_lengths(((2, 6), (5, 3)), seed=1)
    alone = [learn(context, family.base, ask(context, batch), mu)[1].token_loss for batch in (first, second)]
    asked = [ask(context, first), ask(context, second)]
    micro_batches = [asked[0].part([3, 1]), asked[0].part([0, 4, 2])]
    for part, rows in zip(micro_batches, ([3, 1], [0, 4, 2]), strict=True):
        token_loss = learn(context, family.base, part, mu)[1].token_loss
        torch.testing.assert_close(token_loss[part.mask != 0], alone[0][rows][part.mask != 0])
    asked[0].release()
    assert not asked[0].answers and not micro_batches[0].answers
    assert torch.equal(learn(context, family.base, asked[1], mu)[1].token_loss, alone[1])
