"""Checkpoints pad their vocabulary to sizes of their own; rows that no tokenizer can produce have no say."""

import pytest
import replay
import tiny
import torch
from transformers import PreTrainedModel

EXTRA = 13


def padded(model: PreTrainedModel) -> PreTrainedModel:
    """The model with more embedding rows, loud enough to be its likeliest tokens if anyone listened."""
    wider = tiny.model(vocab=tiny.VOCAB + EXTRA)
    weights = model.state_dict()
    generator = torch.Generator().manual_seed(3)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = 5 * torch.randn((EXTRA, weights[name].shape[1]), generator=generator)
        weights[name] = torch.cat([weights[name], rows])
    wider.load_state_dict(weights)
    return wider


WHO = {
    "a_teacher": ["math"],
    "all_teachers": list(replay.TEACHERS),
    "the_student": ["student"],
    "all_models": ["student", *replay.TEACHERS],
}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> replay.Run:
    return replay.run(tmp_path_factory.mktemp("without"))


@pytest.mark.parametrize("who", WHO)
def test_padded_vocabulary_rows_change_nothing(who, without, tmp_path):
    models = {"student": tiny.model(), **replay.specialists()}
    models |= {name: padded(models[name]) for name in WHO[who]}
    step = replay.run(tmp_path, student=models.pop("student"), teachers=models)
    assert step.loss == pytest.approx(without.loss, rel=1e-6)
    assert step.token_metrics() == pytest.approx(without.token_metrics(), rel=1e-5)
    gradient = {name: value[: len(without.gradient[name])] for name, value in step.gradient.items()}
    assert replay.difference(without.gradient, gradient) < 1e-5
    if "student" in WHO[who]:
        assert not step.gradient["model.embed_tokens.weight"][tiny.VOCAB :].any()
