"""The defaults are the paper's hyper-parameter table, and what is derived from them is right."""

import pickle
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from trl import DistillationConfig

from trustmopd import TrustMOPDConfig
from trustmopd.training.environment import check_launch

pytestmark = pytest.mark.unit

#: Table "Hyperparameters" of the paper, row by row, under this package's names.
PAPER = {
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 0.03,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "max_steps": 116,
    "global_batch_size": 64,
    "per_device_train_batch_size": 4,
    "temperature": 0.6,
    "top_p": 1.0,
    "max_prompt_length": 4096,
    "max_completion_length": 8192,
    "beta": 1.0,
    "num_candidates": 128,
    "gamma": 7.0,
    "calibration_batches": 8,
    "allocation": "trust",
    "score": "displacement",
    "granularity": "token",
    "calibrated": True,
    "distillation_temperature": 1.0,
}


@pytest.fixture
def one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.mark.parametrize(("name", "value"), PAPER.items(), ids=PAPER)
def test_a_default_is_the_papers(one_process, tmp_path, name, value):
    assert getattr(TrustMOPDConfig(output_dir=str(tmp_path)), name) == value


def test_the_optimizer_is_adamw_and_every_step_is_logged(one_process, tmp_path):
    args = TrustMOPDConfig(output_dir=str(tmp_path))
    assert args.optim.startswith("adamw")
    assert args.logging_steps == 1


def test_the_learning_rate_warms_up_over_three_percent_of_the_run_and_then_stays(build):
    trainer = build(max_steps=116, learning_rate=1e-6)
    trainer.create_optimizer_and_scheduler(num_training_steps=116)
    rates = []
    for _ in range(116):
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    warm_up = 4  # 0.03 × 116, rounded up
    assert rates[:warm_up] == pytest.approx([1e-6 * step / warm_up for step in range(warm_up)])
    assert rates[warm_up:] == pytest.approx([1e-6] * (116 - warm_up))
    assert trainer.optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {0.0}


@pytest.mark.parametrize(
    ("processes", "settings", "accumulation", "global_batch"),
    [
        *((1, {}, 16, 64), (4, {}, 4, 64), (16, {}, 1, 64)),
        (1, {"global_batch_size": 24, "per_device_train_batch_size": 3}, 8, 24),
        (1, {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 5}, 3, 15),  # which wins
        (8, {"gradient_accumulation_steps": 2}, 2, 64),
    ],
)
def test_accumulation_follows_from_the_global_batch_unless_it_is_set(
    monkeypatch, tmp_path, processes, settings, accumulation, global_batch
):
    # What TrainingArguments does next would start the other processes' rendezvous and wait for them.
    monkeypatch.setattr(DistillationConfig, "__post_init__", lambda self: None)
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    args = TrustMOPDConfig(output_dir=str(tmp_path), **settings)
    assert (args.gradient_accumulation_steps, args.global_batch_size) == (accumulation, global_batch)


def test_a_global_batch_that_the_processes_cannot_share_names_all_three_numbers(monkeypatch, tmp_path):
    monkeypatch.setattr(DistillationConfig, "__post_init__", lambda self: None)
    monkeypatch.setenv("WORLD_SIZE", "5")
    with pytest.raises(ValueError, match=r"global_batch_size = 64 .* 4 × 5"):
        TrustMOPDConfig(output_dir=str(tmp_path))


@pytest.mark.skipif(torch.cuda.is_available() or torch.xpu.is_available(), reason="the hardware has bfloat16")
def test_a_cpu_trains_in_full_precision(one_process, tmp_path):
    assert TrustMOPDConfig(output_dir=str(tmp_path)).bf16 is False


def test_bfloat16_is_used_where_the_hardware_has_it_and_nothing_else_was_asked_for(one_process, monkeypatch, tmp_path):
    monkeypatch.setattr("trustmopd.training.config.has_bfloat16", lambda: True)
    monkeypatch.setattr(DistillationConfig, "__post_init__", lambda self: None)
    assert TrustMOPDConfig(output_dir=str(tmp_path)).bf16 is True
    assert TrustMOPDConfig(output_dir=str(tmp_path), fp16=True).bf16 is False
    assert TrustMOPDConfig(output_dir=str(tmp_path), bf16=False).bf16 is False


def test_mixed_precision_is_the_launchers_and_a_contradiction_is_refused(one_process, monkeypatch, tmp_path):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert TrustMOPDConfig(output_dir=str(tmp_path), use_cpu=True).mixed_dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"mixed precision bf16, but bf16 = False .* --mixed_precision no"):
        TrustMOPDConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert TrustMOPDConfig(output_dir=str(tmp_path), use_cpu=True).mixed_dtype == torch.float16


@pytest.mark.parametrize(
    ("settings", "scored", "needs_reference", "calibrates"),
    [
        ({}, True, True, True),
        ({"calibrated": False}, True, True, False),
        ({"score": "likelihood"}, True, False, True),
        ({"score": "negative_entropy"}, True, False, True),
        ({"score": "teacher_student_kl"}, True, False, True),
        ({"allocation": "uniform"}, False, False, False),
        ({"allocation": "random"}, False, False, False),
        ({"allocation": "routed"}, False, False, False),
        ({"allocation": "single", "single_teacher": "math"}, False, False, False),
        ({"allocation": lambda at, scores: scores}, True, True, True),
        ({"score": lambda at: at.student_logp}, True, True, True),
    ],
)
def test_a_rule_asks_for_scores_reference_and_calibration_only_where_it_uses_them(
    one_process, tmp_path, settings, scored, needs_reference, calibrates
):
    args = TrustMOPDConfig(output_dir=str(tmp_path), **settings)
    assert (args.scored, args.needs_reference, args.calibrates) == (scored, needs_reference, calibrates)


def test_a_rule_given_as_a_function_is_pickled_and_printed_by_its_name(one_process, tmp_path):
    rule = lambda at, scores: scores  # noqa: E731 - what cannot be pickled is the point
    args = TrustMOPDConfig(output_dir=str(tmp_path), allocation=rule, score=rule)
    restored = pickle.loads(pickle.dumps(args))
    name = f"{__name__}.{rule.__qualname__}"
    assert restored.allocation == restored.score == name
    assert args.to_dict()["allocation"]["rule"] == args.to_dict()["score"] == name
    assert args.allocation is rule


def test_every_field_of_our_own_is_documented():
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    if not page.is_file():
        pytest.skip("docs/configuration.md is not written yet")
    text = page.read_text(encoding="utf-8")
    inherited = {field.name for field in fields(DistillationConfig)}
    own = {field.name for field in fields(TrustMOPDConfig)} - inherited
    assert {name for name in own if f"`{name}`" not in text} == set()


def test_every_field_of_our_own_says_what_it_is():
    inherited = {field.name for field in fields(DistillationConfig)}
    own = [field for field in fields(TrustMOPDConfig) if field.name not in inherited]
    assert len(own) >= 17
    assert [field.name for field in own if not field.metadata.get("help")] == []


def test_a_process_that_does_not_see_those_started_with_it_is_refused(one_process, monkeypatch, tmp_path):
    args = TrustMOPDConfig(output_dir=str(tmp_path))
    check_launch(args)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"2 processes.*use_cpu"):
        check_launch(args)


#: Values of one field that are refused in a message that begins with the field and its value.
REFUSED = {
    **{name: ["other"] for name in ("allocation", "score", "granularity", "teacher_placement", "prompt_truncation")},
    **{name: ["other"] for name in ("vllm_mode", "vllm_model_impl")},
    **{name: [0, -512, 0.5, "many"] for name in ("num_candidates", "calibration_batches", "global_batch_size")},
    **{name: [0, -512, 0.5, "many"] for name in ("max_prompt_length", "max_tokens_per_micro_batch")},
    **{name: [0.0, -7.0, float("nan"), float("inf")] for name in ("gamma", "distillation_temperature")},
    **{name: [0, float("inf")] for name in ("temperature", "learning_rate", "repetition_penalty", "ray_timeout")},
    **{name: [0, 1.5] for name in ("top_p", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "max_steps")},
    **{name: ["maybe"] for name in ("bf16", "gradient_checkpointing")},
    **{name: ["text"] for name in ("model_init_kwargs", "chat_template_kwargs", "generation_kwargs")},
    "teacher_dtype": ["float12", "int8", 16],
    "answers_on_device_gib": [-1, "all"],
    "dataloader_num_workers": [-1],
    "save_steps": [0],
    "num_train_epochs": [2],  # beside max_steps
    "beta": [0.5],
    "data_seed": [3],
    "remove_unused_columns": [True],
    "teacher_model_name_or_path": ["hub/id"],
    "teacher_model_revision": ["main"],
    "teacher_model_init_kwargs": [{"a": 1}],
    "deepspeed": ["ds.json"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_a_value_that_makes_no_sense_is_refused_by_field_and_value(one_process, tmp_path, name, value):
    with pytest.raises(ValueError) as refusal:
        TrustMOPDConfig(output_dir=str(tmp_path), **{"max_steps": 4, name: value})
    shown = f"{value:g}" if name == "num_train_epochs" else repr(value)
    assert str(refusal.value).startswith(f"{name} = {shown}")


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"allocation": "trsut"}, "uniform"),
        ({"score": "vibes"}, "displacement"),
        ({"gamma": 0.0}, "uniform"),
        ({"teacher_dtype": "float12"}, "'bfloat16'"),
        ({"beta": 0.5}, "DistillationTrainer"),
        ({"teacher_model_name_or_path": "hub/id"}, "teachers="),
        ({"allocation": "single"}, "single_teacher"),
        ({"num_candidates": 1}, "num_candidates = 1"),
        ({"global_batch_size": 6, "per_device_train_batch_size": 4}, "global_batch_size = 6 .* 4 × 1"),
        ({"model_init_kwargs": {"torch_dtype": "bfloat16"}}, "model_init_kwargs.torch_dtype .*model_init_kwargs.dtype"),
        ({"model_init_kwargs": {"dtype": "bfloat"}}, "model_init_kwargs.dtype = 'bfloat'"),
        ({"generation_kwargs": {"temperatur": 1}}, "generation_kwargs.temperatur"),
        ({"generation_kwargs": {"max_new_tokens": 3}}, "generation_kwargs.max_new_tokens .*max_completion_length"),
        ({"generation_kwargs": {"do_sample": False}}, "generation_kwargs.do_sample"),
        ({"allocation": "routed", "target": "shift"}, "'shift' .*target.weighted"),
        ({"emphasis": "equal_shares", "domain_column": None}, "'equal_shares' .*emphasis.by = leader"),
        ({"target": {"rule": "extrapolated", "factor": 0}}, "factor"),
        ({"optim": "adamm"}, "adamm"),
        ({"lr_scheduler_type": "cosin"}, "cosin"),
    ],
    ids=str,
)
def test_a_refusal_says_what_to_write_instead(one_process, tmp_path, settings, facts):
    with pytest.raises(ValueError, match=facts):
        TrustMOPDConfig(output_dir=str(tmp_path), **settings)


def test_one_candidate_is_enough_where_nothing_is_compared(one_process, tmp_path):
    assert TrustMOPDConfig(output_dir=str(tmp_path), num_candidates=1, allocation="uniform").num_candidates == 1
