"""What users do with a trainer besides training it once: evaluate, copy its arguments, start over, bring odd models."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from peft import LoraConfig
from transformers import GPT2Config, GPT2LMHeadModel

from trustmopd import Teacher, TrustMOPDConfig, TrustMOPDTrainer


def make(folder: Path, model: Any = None, teachers: Any = None, peft: LoraConfig | None = None, **config: Any) -> Any:
    base = tiny.model(0)
    settings = {
        "output_dir": str(folder),
        "num_candidates": 12,
        "global_batch_size": 8,
        "max_completion_length": 8,
        "max_steps": 2,
        "learning_rate": 1e-3,
        "calibration_batches": 1,
        "save_steps": 1,
        "disable_tqdm": True,
    }
    return TrustMOPDTrainer(
        model=base if model is None else model,
        teachers=teachers or {name: tiny.specialist(base, seed) for seed, name in enumerate(("math", "code", "if"), 1)},
        args=TrustMOPDConfig(**{**settings, **config}),
        train_dataset=tiny.prompts(),
        eval_dataset=tiny.prompts(8),
        processing_class=tiny.tokenizer(),
        peft_config=peft,
    )


def steps(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def test_evaluating_before_training_calibrates_first(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    loss = trainer.evaluate()["eval_loss"]
    assert trainer.calibration is not None and loss > 0


def test_a_copied_configuration_keeps_its_own_rule(tmp_path: Path) -> None:
    def all_to_first(state: Any, scores: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.zeros_like(scores[0]).long(), len(scores)).movedim(-1, 0).float()

    args = copy.deepcopy(TrustMOPDConfig(output_dir=str(tmp_path), allocation=all_to_first))
    assert args.allocation is all_to_first
    trainer = make(tmp_path, allocation=copy.deepcopy(args).allocation)
    trainer.train()
    assert steps(tmp_path)[-1]["weight/math"] == 1


def test_a_run_started_over_in_the_same_folder_is_not_resumed_from_the_old_one(tmp_path: Path) -> None:
    make(tmp_path, max_steps=4, save_total_limit=None).train()
    make(tmp_path, max_steps=2, allocation="uniform").train()
    again = make(tmp_path, max_steps=3, allocation="uniform")
    again.train(resume_from_checkpoint=True)  # from step 2 of the second run, not step 4 of the first
    assert [line["step"] for line in steps(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize(("field", "value"), [("gamma", 3.0), ("granularity", "response"), ("num_candidates", 10)])
def test_the_rule_cannot_be_changed_in_mid_run(tmp_path: Path, field: str, value: Any) -> None:
    make(tmp_path).train()
    with pytest.raises(ValueError, match=rf"{field} was .*{value}"):
        make(tmp_path, max_steps=3, **{field: value}).train(resume_from_checkpoint=True)
    make(tmp_path, max_steps=3, learning_rate=1e-4).train(resume_from_checkpoint=True)  # optimization may


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_teacher_that_is_the_student_teaches_it_nothing_whatever_its_positions(tmp_path: Path, family: str) -> None:
    torch.manual_seed(0)
    learned = GPT2Config(
        vocab_size=tiny.VOCAB, n_positions=128, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
    )
    model = GPT2LMHeadModel(learned).eval() if family == "gpt2" else tiny.model(3)
    trainer = make(
        tmp_path,
        model,
        {"twin": copy.deepcopy(model)},
        allocation="uniform",
        learning_rate=1e-12,
        per_device_train_batch_size=1,
    )
    trainer.train()
    assert max(line["loss"] for line in steps(tmp_path)) < 1e-6


def test_a_student_trains_in_bfloat16_beside_policies_that_share_its_weights(tmp_path: Path) -> None:
    student = tiny.model(0)
    lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    trainer = make(
        tmp_path, student, {"twin": student}, lora, allocation="uniform", learning_rate=1e-12, bf16=True, use_cpu=True
    )
    trainer.train()
    assert max(line["loss"] for line in steps(tmp_path)) < 0.02  # the same policy, up to bfloat16's rounding


def test_a_frozen_student_is_refused_and_a_given_teacher_stays_trainable(tmp_path: Path) -> None:
    teacher = tiny.specialist(tiny.model(0), 1)
    make(tmp_path / "a", teachers={"math": teacher}, allocation="uniform").train()
    assert all(parameter.requires_grad for parameter in teacher.parameters())
    with pytest.raises(ValueError, match="requires_grad"):
        make(tmp_path / "b", model=tiny.model(0).requires_grad_(False))


def test_a_score_that_is_not_a_number_stops_the_run_before_it_reaches_the_student(tmp_path: Path) -> None:
    trainer = make(tmp_path, score=lambda state: state.teacher_logp[..., 0] * float("nan"), calibrated=False)
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    with pytest.raises(ValueError, match="score rule"):
        trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert not list(tmp_path.glob("checkpoint-*"))


def test_an_adapter_with_another_chat_template_is_refused(tmp_path: Path) -> None:
    base = tiny.model(0)
    adapter = tiny.adapter(base, tmp_path / "adapter", 1)
    make(tmp_path / "fine", base, {"math": Teacher(adapter=adapter)})
    tiny.tokenizer(template="{{ messages }}").save_pretrained(adapter)
    with pytest.raises(ValueError, match="(?s)teacher 'math' .*messages"):
        make(tmp_path / "run", base, {"math": Teacher(adapter=adapter)})


@pytest.mark.parametrize("file", ["optimizer.pt", "trainer_state.json"])
def test_a_checkpoint_file_cut_short_is_named(tmp_path: Path, file: str) -> None:
    make(tmp_path).train()
    broken = tmp_path / "checkpoint-2" / file
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    with pytest.raises(ValueError, match=str(broken)):
        make(tmp_path, max_steps=3).train(resume_from_checkpoint=True)


def test_one_candidate_and_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_candidates = 1"):
        TrustMOPDConfig(output_dir=str(tmp_path), num_candidates=1)
    TrustMOPDConfig(output_dir=str(tmp_path), num_candidates=1, allocation="uniform")
    with pytest.raises(ValueError, match="'image'"):
        TrustMOPDTrainer(
            tiny.model(0),
            {"math": tiny.model(1)},
            args=TrustMOPDConfig(output_dir=str(tmp_path), global_batch_size=8, num_candidates=8),
            train_dataset=tiny.prompts().add_column("image", [None] * 32),
            processing_class=tiny.tokenizer(),
        )
