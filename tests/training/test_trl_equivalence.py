"""One teacher, every token a candidate: plain on-policy distillation, TRL's but for the mean over responses."""

from pathlib import Path

import pytest
import replay
import tiny
import torch
from trl import DistillationConfig
from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

from trustmopd.training.step import batch_of

EQUAL = (6,) * 8
HALVES = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
EVERY_TOKEN = {"num_candidates": tiny.VOCAB}


def teacher():
    return tiny.specialist(tiny.model(), 1)


def ours(folder: Path, **options) -> replay.Run:
    return replay.run(folder, teachers={"math": teacher()}, **{"allocation": "uniform", **EVERY_TOKEN, **options})


def trls(folder: Path, lengths: tuple[int, ...], **options) -> replay.Run:
    trainer = replay.Replay(
        model=tiny.model(),
        teacher_model=teacher(),
        args=DistillationConfig(output_dir=str(folder), beta=1.0, temperature=1.0, **replay.OPTIONS | options),
        train_dataset=replay.prompts(lengths),
        processing_class=tiny.tokenizer(),
    )
    trainer.replay(lengths)
    return replay.trained(trainer)


@pytest.mark.parametrize("rule", ["uniform", "trust", "single"])
def test_one_teacher_pool_is_plain_on_policy_distillation(rule, tmp_path):
    options = {"lengths": EQUAL, **HALVES}
    step = ours(tmp_path / "ours", allocation=rule, single_teacher="math", **options)
    expected = trls(tmp_path / "trl", **options)
    assert step.loss == pytest.approx(expected.loss, rel=1e-5)
    assert replay.difference(expected.gradient, step.gradient) < 1e-5


@pytest.mark.parametrize("length", [1, 5, replay.LONGEST])
def test_a_single_response_has_trls_loss_and_gradient_at_any_length(length, tmp_path):
    options = {"lengths": (length,), "per_device_train_batch_size": 1}
    step, expected = ours(tmp_path / "ours", **options), trls(tmp_path / "trl", **options)
    assert step.loss == pytest.approx(expected.loss, rel=1e-5)
    assert replay.difference(expected.gradient, step.gradient) < 1e-5


def test_every_token_has_trls_divergence(tmp_path):
    trainer = replay.trainer_of(tmp_path, teachers={"math": teacher()}, allocation="uniform", **EVERY_TOKEN)
    inputs = trainer._generate_and_score_completions(list(trainer.train_dataset))
    student = tiny.model()
    with torch.no_grad():
        token_loss = trainer._objective(student, batch_of(inputs))[1].token_loss
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        states, heads = [], []
        for model in (student, teacher()):
            hidden = model.model(ids, attention_mask=mask).last_hidden_state
            states.append(hidden[:, inputs["prompt_ids"].shape[1] - 1 : -1].flatten(0, 1))
            heads.append(model.lm_head.weight)
        divergence, _ = ChunkedDivergenceFunction.apply(
            states[0], heads[0], None, states[1], heads[1], None, 1.0, 1.0, 1.0, None, 1.0, None
        )
    valid = inputs["completion_mask"] != 0
    assert valid.sum() == sum(replay.LENGTHS)
    torch.testing.assert_close(token_loss[valid], divergence.view_as(token_loss)[valid], rtol=1e-5, atol=1e-6)


def test_unequal_responses_count_alike_here_and_by_length_in_trl(tmp_path):
    lengths = (1, replay.LONGEST, 3, 8, 2, 9, 5, 1)
    step = ours(tmp_path / "ours", lengths=lengths, **HALVES)
    token_mean = trls(tmp_path / "trl", lengths=lengths, **HALVES)
    assert step.loss != pytest.approx(token_mean.loss, rel=0.01)
    assert replay.difference(token_mean.gradient, step.gradient) > 0.1
    mean_of_response_means = replay.plain_objective(
        tiny.model(),
        [teacher()],
        lambda at, calibrated: torch.ones_like(calibrated),
        lengths=lengths,
        candidates=tiny.VOCAB,
    )
    assert step.loss == pytest.approx(mean_of_response_means.loss, rel=1e-5)
    assert replay.difference(mean_of_response_means.gradient, step.gradient) < 1e-5
