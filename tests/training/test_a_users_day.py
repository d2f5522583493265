"""What users do with a trainer besides training it once: evaluate, copy its arguments, start over, bring odd models."""

import copy

import pytest
import tiny
import torch
from peft import LoraConfig
from transformers import GPT2Config, GPT2LMHeadModel

from trustmopd import TrustMOPDConfig


def test_evaluating_before_training_calibrates_first(build, family):
    trainer = build(eval_prompts=family.prompts.select(range(8)))
    loss = trainer.evaluate()["eval_loss"]
    assert trainer.calibration is not None and loss > 0


def test_a_copied_configuration_keeps_its_own_rule(build, steps_of, tmp_path):
    def all_to_first(state, scores):
        return torch.nn.functional.one_hot(torch.zeros_like(scores[0]).long(), len(scores)).movedim(-1, 0).float()

    args = copy.deepcopy(TrustMOPDConfig(output_dir=str(tmp_path), allocation=all_to_first))
    assert args.allocation is all_to_first
    build(allocation=copy.deepcopy(args).allocation).train()
    assert steps_of(tmp_path / "run")[-1]["weight/math"] == 1


def test_a_run_started_over_in_the_same_folder_is_not_resumed_from_the_old_one(build, steps_of, tmp_path):
    build(max_steps=4, save_steps=1, save_total_limit=None).train()
    build(max_steps=2, save_steps=1, allocation="uniform").train()
    again = build(max_steps=3, save_steps=1, allocation="uniform")
    again.train(resume_from_checkpoint=True)  # from step 2 of the second run, not step 4 of the first
    assert [line["step"] for line in steps_of(tmp_path / "run")] == [1, 2, 3]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_teacher_that_is_the_student_teaches_it_nothing_whatever_its_positions(make, steps_of, tmp_path, kind):
    torch.manual_seed(0)
    learned = GPT2Config(
        vocab_size=tiny.VOCAB, n_positions=128, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
    )
    model = GPT2LMHeadModel(learned).eval() if kind == "gpt2" else tiny.model(3)
    settings = {"allocation": "uniform", "learning_rate": 1e-12}
    make(tmp_path, model=model, teachers={"twin": copy.deepcopy(model)}, **settings).train()
    assert max(line["loss"] for line in steps_of(tmp_path)) < 1e-6


def test_a_student_trains_in_bfloat16_beside_policies_that_share_its_weights(make, steps_of, tmp_path):
    student = tiny.model(0)
    lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    settings = {"allocation": "uniform", "learning_rate": 1e-12, "bf16": True}
    make(tmp_path, model=student, teachers={"twin": student}, peft_config=lora, **settings).train()
    assert max(line["loss"] for line in steps_of(tmp_path)) < 0.02  # the same policy, up to bfloat16's rounding


def test_a_score_that_is_not_a_number_stops_the_run_before_it_reaches_the_student(build, tmp_path):
    trainer = build(score=lambda state: state.teacher_logp[..., 0] * float("nan"), calibrated=False)
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    with pytest.raises(ValueError, match="score rule"):
        trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert not list((tmp_path / "run").glob("checkpoint-*"))
