"""Dropout of the student: off by default, told when it is on, not mentioned where there is none."""

import logging

import pytest
import tiny
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from trustmopd.training.dropout import settle_dropout

pytestmark = pytest.mark.unit

IDS = torch.arange(4, 40)[None]


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=tiny.VOCAB, n_positions=64, n_embd=16, n_layer=1, n_head=2))


def reads_as_it_samples(student: torch.nn.Module) -> bool:
    return torch.equal(student.train()(IDS).logits, student.eval()(IDS).logits)


def test_dropout_is_off_by_default_in_layers_and_adapters_and_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    lora = LoraConfig(r=2, lora_dropout=0.25, target_modules=["c_fc"], init_lora_weights=False, fan_in_fan_out=True)
    student = get_peft_model(gpt2(), lora)
    assert not reads_as_it_samples(student)
    with caplog.at_level(logging.WARNING, logger="trustmopd"):
        assert settle_dropout(student, disable=True)
    assert reads_as_it_samples(student)
    assert "0.25" in caplog.text and "disable_dropout = False" in caplog.text


def test_dropout_that_is_kept_is_told(caplog: pytest.LogCaptureFixture) -> None:
    student = gpt2()
    with caplog.at_level(logging.WARNING, logger="trustmopd"):
        assert settle_dropout(student, disable=False)
    assert not reads_as_it_samples(student)
    assert "0.1" in caplog.text and "Rollouts" in caplog.text


@pytest.mark.parametrize("disable", [True, False])
def test_nothing_is_told_of_a_student_without_dropout(disable: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="trustmopd"):
        assert not settle_dropout(tiny.model(), disable=disable)
    assert not caplog.text
