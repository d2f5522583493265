"""A run under a token budget is the run without it: records, calibration, evaluation, adapters, resume."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import replay
import tiny
import torch
from peft import LoraConfig

from trustmopd import Teacher, TrustMOPDConfig
from trustmopd.training.probe import probe

BUDGET = {"max_tokens_per_micro_batch": 80}
#: Prompt and response by row.
TOKENS = [len(prompt) + length for prompt, length in zip(replay.prompt_ids(8), replay.LENGTHS, strict=True)]


def check_same(run: replay.Run, other: replay.Run) -> None:
    assert len(run.gradients) == len(other.gradients)
    for step, gradient in enumerate(run.gradients):
        assert replay.difference(gradient, other.gradients[step]) < (1e-5 if step == 0 else 1e-4)
        assert run.token_metrics(step) == pytest.approx(other.token_metrics(step), rel=1e-4)


def test_the_student_reads_without_a_mask_in_passes_that_keep_to_the_budget(tmp_path):
    trainer, seen = replay.trainer_of(tmp_path, allocation="uniform", **BUDGET), []
    trainer.model.model.register_forward_pre_hook(lambda m, args, kwargs: seen.append(kwargs), with_kwargs=True)
    step = replay.trained(trainer)
    assert len(seen) == len(step.losses) > 1
    assert all(each.get("attention_mask") is None for each in seen)
    shapes = [tuple(each["input_ids"].shape) for each in seen]
    assert sum(rows for rows, _ in shapes) == len(TOKENS) and max(width for _, width in shapes) == max(TOKENS)
    assert all(rows == 1 or rows * width <= 80 for rows, width in shapes)


def test_rows_are_sorted_over_all_of_a_step_and_not_within_micro_batches(tmp_path):
    split = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    trainer, widths = replay.trainer_of(tmp_path, allocation="uniform", **split, max_tokens_per_micro_batch=1), []
    trainer.model.model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    replay.trained(trainer)
    assert widths == sorted(TOKENS, reverse=True)


@pytest.mark.parametrize("given", [{}, {"global_batch_size": 16}, {"gradient_accumulation_steps": 3}])
def test_a_budget_leaves_the_number_of_prompts_a_step_alone(given, tmp_path):
    sizes = [
        TrustMOPDConfig(output_dir=str(tmp_path), use_cpu=True, per_device_train_batch_size=2, **given, **budget)
        for budget in ({}, BUDGET)
    ]
    assert sizes[0].global_batch_size == sizes[1].global_batch_size
    prompts = [args.per_device_train_batch_size * args.gradient_accumulation_steps for args in sizes]
    assert prompts[0] == prompts[1] == sizes[0].global_batch_size


def test_a_budget_needs_no_multiple_of_the_micro_batch_but_one_of_the_processes(monkeypatch, tmp_path):
    given = {"output_dir": str(tmp_path), "use_cpu": True, "global_batch_size": 6, **BUDGET}
    assert TrustMOPDConfig(**given).per_device_train_batch_size == 6  # which is no multiple of 4
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="global_batch_size = 6"):
        TrustMOPDConfig(**given)


def test_token_records_are_those_of_whole_micro_batches(tmp_path, calibration):
    tables = []
    for name, budget in (("without", {}), ("with", BUDGET)):
        replay.run(tmp_path / name, calibration_path=calibration, record_allocation_every=1, **budget)
        tables.append(pq.read_table(tmp_path / name / "allocation" / "step-000001.parquet"))
    assert tables[0].schema == tables[1].schema and tables[0].num_rows == tables[1].num_rows
    for field in tables[0].schema:
        ours, theirs = (table[field.name] for table in tables)
        if pa.types.is_floating(field.type):
            tolerance = 1e-5 if field.type == pa.float32() else 1e-3
            np.testing.assert_allclose(theirs.to_numpy(), ours.to_numpy(), rtol=tolerance, atol=tolerance)
        elif not field.type.equals(pa.list_(pa.float16())):
            assert ours.equals(theirs), field.name


def test_calibration_is_measured_on_the_same_tokens(tmp_path):
    without, within = (
        replay.trainer_of(tmp_path / name, **budget).calibrate() for name, budget in (("without", {}), ("with", BUDGET))
    )
    assert without.tokens == within.tokens == sum(replay.LENGTHS)
    assert within.mu == pytest.approx(without.mu, rel=1e-5)
    assert within.spread == pytest.approx(without.spread, rel=1e-4)


def test_rows_that_fill_no_batch_are_judged_once_each_and_none_is_written_to_fill_it(tmp_path):
    trainer = replay.trainer_of(tmp_path, **BUDGET)
    parts = [part for part, *_ in probe(trainer, [6, 2, 5], seed=0, description="")]
    assert sorted(rollout.id.row for part in parts for rollout in part.rollouts) == [2, 5, 6]


def test_evaluation_has_the_loss_and_the_metrics_that_it_has_without(tmp_path):
    found = []
    for name, budget in (("without", {}), ("with", BUDGET)):
        trainer = replay.trainer_of(tmp_path / name, per_device_eval_batch_size=8, **budget)
        trainer.evaluate(trainer.train_dataset)
        found.append(trainer.state.log_history[-1])
    for metric in ("eval_loss", "eval_weight/math", "eval_score/code", "eval_candidates/student_mass"):
        assert found[1][metric] == pytest.approx(found[0][metric], rel=1e-5)


@pytest.mark.parametrize("rule", ["trust", "routed"])
def test_a_lora_student_with_adapter_teachers_on_its_base_takes_the_same_steps(rule, tmp_path):
    for seed, name in enumerate(replay.TEACHERS, 1):
        tiny.adapter(tiny.model(), tmp_path / name, seed)
    options = {
        **replay.RULES[rule],
        "teachers": {name: Teacher(adapter=tmp_path / name) for name in replay.TEACHERS},
        "peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        "max_steps": 2,
        "gradient_checkpointing": True,
    }
    without = replay.run(tmp_path / "without", **options)
    within = replay.run(tmp_path / "with", **options, **BUDGET)
    assert len(within.losses) > len(without.losses)
    check_same(without, within)


def test_a_run_may_be_resumed_with_a_budget_and_without(tmp_path, calibration):
    options = {"calibration_path": calibration, "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    whole = replay.run(tmp_path / "whole", **options)
    for name, budget in (("with", BUDGET), ("without", {})):
        begun = BUDGET if name == "without" else {}
        replay.run(tmp_path / name, **{**options, "max_steps": 2}, **begun)
        trainer = replay.trainer_of(tmp_path / name, **options, **budget)
        gradients = replay.Gradients()
        trainer.add_callback(gradients)
        trainer.train(resume_from_checkpoint=True)
        assert len(gradients.steps) == 1
        assert replay.difference(whole.gradients[2], gradients.steps[0]) < 1e-4
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        assert losses == pytest.approx([line["loss"] for line in whole.logs], rel=1e-5)


def test_a_run_under_a_budget_resumes_on_its_trajectory(tmp_path):
    """With real rollouts: sampling goes on from the random state of the checkpoint."""

    def trainer(folder: Path, steps: int) -> replay.TrustMOPDTrainer:
        return replay.TrustMOPDTrainer(
            model=tiny.model(),
            teachers=replay.specialists(),
            args=TrustMOPDConfig(
                str(folder),
                **replay.OPTIONS
                | {"max_steps": steps, "num_candidates": 16, "calibration_batches": 1, "save_strategy": "steps"},
                save_steps=2,
                **BUDGET,
            ),
            train_dataset=tiny.prompts(16),
            processing_class=tiny.tokenizer(),
        )

    trainer(tmp_path / "whole", 4).train()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "resumed" / "checkpoint-2")
    trainer(tmp_path / "resumed", 4).train(resume_from_checkpoint=True)
    lines = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "resumed")
    ]
    whole, resumed = ({line["step"]: line["loss"] for line in each if "loss" in line} for each in lines)
    assert {3, 4} <= resumed.keys() and {*whole} == {1, 2, 3, 4}
    assert [resumed[step] for step in (3, 4)] == pytest.approx([whole[step] for step in (3, 4)], abs=1e-6)


def test_a_batch_of_empty_responses_is_a_step_of_nothing(tmp_path):
    step = replay.run(tmp_path, lengths=(0,) * 8, allocation="uniform", **BUDGET)
    assert step.loss == 0.0 and not any(gradient.any() for gradient in step.gradient.values())
    assert all(torch.isfinite(parameter).all() for parameter in step.trainer.model.parameters())
