"""The objective of a batch: what each rule makes of it, and its loss."""

from dataclasses import replace

import pytest
import torch

from trustmopd.method import SCORES, objective, random_weights, response_means, trust
from trustmopd.training.step import ask, candidates_of, entropy_of, loss_of, objective_of
from trustmopd.training.step.allocation import derived_seed

pytestmark = pytest.mark.unit

MU = torch.tensor([0.5, 1.0, 2.0])


@pytest.fixture
def learn(context_of, batch_of_lengths, family):
    """The objective under some settings, of the whole batch or of `rows`."""

    def run(rows=range(5), mu=None, teachers=None, rename=None, **settings):
        context = context_of(**settings)
        batch = ask(context, batch_of_lengths(teachers=teachers)).part(rows)
        if rename:
            batch = replace(batch, rollouts=tuple(replace(each, draw=rename(each.draw)) for each in batch.rollouts))
        scored = candidates_of(context, family.base, batch, step=1)
        return batch, scored, objective_of(context, scored, batch, mu)

    return run


@pytest.mark.parametrize("granularity", ["token", "response"])
def test_trust_is_the_methods(learn, granularity):
    _, scored, result = learn(mu=MU, granularity=granularity, gamma=5.0)
    expected = objective(scored.at, trust(5.0), SCORES["displacement"], MU, granularity)
    for name in ("token_loss", "weights", "scores", "target_logp", "degenerate"):
        assert torch.equal(getattr(result, name), getattr(expected, name)), name


def test_uniform_single_and_routed_weights_need_no_scores(learn):
    assert (learn(allocation="uniform")[2].weights == 1 / 3).all()
    single = learn(allocation="single", single_teacher="code")[2]
    assert single.scores is None and single.weights[:, 0, 0].tolist() == [0.0, 1.0, 0.0]
    labels = [2, 0, 0, 1, 2]
    routed = learn(allocation="routed", teachers=labels)[2].weights
    assert routed.argmax(dim=0)[:, 0].tolist() == labels and (routed.sum(dim=0) == 1).all()
    assert learn(rows=[4, 1], allocation="routed", teachers=labels)[2].weights.argmax(dim=0)[:, 0].tolist() == [2, 0]


def test_random_weights_follow_from_the_rollouts_draw_and_the_position(learn):
    weights = learn(allocation="random")[2].weights
    for row in range(5):
        generator = torch.Generator().manual_seed(derived_seed(1, 0, row))
        assert torch.equal(weights[:, row], random_weights(3, (weights.shape[2],), generator))
    assert torch.equal(learn(rows=[3, 1], allocation="random")[2].weights, weights[:, [3, 1]])
    second = learn(allocation="random", rename=lambda draw: f"{draw}/1")[2].weights
    assert not torch.isclose(second, weights).all(dim=0).any()


def test_a_users_rule_and_score_get_the_state(learn):
    rule = learn(
        allocation=lambda at, scores: scores / scores.sum(dim=0),
        score=lambda at: torch.ones_like(at.teacher_logp[..., 0]),
        mu=MU,
    )[2]
    torch.testing.assert_close(rule.weights[:, 0, 0], (1 / MU) / (1 / MU).sum())


def test_a_token_that_a_rule_masks_has_no_loss_and_counts_as_before(learn):
    def first_token_only(at, scores):
        weights = torch.full(at.teacher_logp.shape[:-1], 1 / 3)
        weights[:, :, 1:] = 0.0
        return weights

    batch, _, whole = learn(allocation="uniform")
    _, _, result = learn(allocation=first_token_only)
    assert torch.equal(result.token_loss[:, 0], whole.token_loss[:, 0]) and not result.token_loss[:, 1:].any()
    lengths = batch.mask.sum(dim=1)
    expected = (whole.token_loss[:, 0] / lengths.clamp_min(1))[lengths > 0].sum() / 4
    torch.testing.assert_close(loss_of(result, batch, batch.num_responses, step=1), expected)


def test_the_losses_of_parts_add_up_to_that_of_the_batch(learn):
    batch, scored, result = learn(mu=MU)
    whole = loss_of(result, batch, batch.num_responses, step=1)
    valid = batch.mask != 0
    torch.testing.assert_close(whole, response_means(result.token_loss, valid)[[0, 1, 2, 4]].mean())
    parts = [learn(rows=rows, mu=MU) for rows in ([4, 0], [3, 1, 2])]
    sum_of_parts = sum(loss_of(found, part, batch.num_responses, step=1) for part, _, found in parts)
    torch.testing.assert_close(sum_of_parts, whole)
    entropy = torch.special.entr(scored.at.student_logp.exp()).sum(dim=-1)[valid].sum()
    torch.testing.assert_close(entropy_of(scored), entropy.detach())


def test_a_loss_that_is_no_number_stops_the_run_with_its_step(learn):
    batch, _, result = learn(allocation="uniform")
    with pytest.raises(FloatingPointError, match="step 4"):
        loss_of(replace(result, token_loss=result.token_loss * float("nan")), batch, batch.num_responses, step=4)
