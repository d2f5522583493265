"""The card beside the checkpoints names whom the student learnt from, and nothing that is not so."""

from dataclasses import replace

import yaml
from peft import LoraConfig

from trustmopd.training.identity import Source


def card(folder):
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(front), text


def test_a_card_names_student_teachers_rule_and_their_habits(build, checkpoints, tmp_path):
    teachers = {name: checkpoints[name] for name in ("math", "code")}
    trainer = build(model=checkpoints["base"], teachers=teachers, save_steps=2)
    trainer.train()
    front, text = card(tmp_path / "run")
    assert front["library_name"] == "transformers" and "trustmopd" in front["tags"]
    assert "base_model" not in front, "a folder of this machine is no model of the Hub"
    assert f"| student at the start | {checkpoints['base']} |" in text
    for name, folder in teachers.items():
        assert f"| teacher `{name}` | {folder} | {trainer.calibration.mu[name]:.4g} |" in text
    assert "by its displacement relative to its habit, mu, to the power of 7" in text
    assert "24 prompts, 4 a step, 2 steps planned, learning rate 0.001" in text
    assert "Licence" in text and "None" not in text


def test_a_card_of_an_adapter_and_of_one_teacher(build, tmp_path):
    adapter = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    trainer = build(peft_config=adapter, allocation="single", single_teacher="code", max_steps=1, save_steps=1)
    trainer.identity = replace(trainer.identity, student=Source("somebody/some-base", None))
    trainer.train()
    front, text = card(tmp_path / "run")
    assert front["library_name"] == "peft" and front["base_model"] == "somebody/some-base"
    assert "from one teacher" in text and "towards `code` alone" in text and "teacher `math`" not in text
    assert "whole LoRA adapter" in text
