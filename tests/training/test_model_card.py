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
    facts = ("displacement", "mu", "power of 7", "24 prompts", "2 steps", "learning rate 0.001", "Licence")
    assert [fact for fact in facts if fact not in text] == [] and "None" not in text


def test_a_card_of_an_adapter_and_of_one_teacher(build, tmp_path):
    adapter = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    trainer = build(peft_config=adapter, allocation="single", single_teacher="code", max_steps=1, save_steps=1)
    trainer.identity = replace(trainer.identity, student=Source("somebody/some-base", None))
    trainer.train()
    front, text = card(tmp_path / "run")
    assert front["library_name"] == "peft" and front["base_model"] == "somebody/some-base"
    assert "one teacher" in text and "`code`" in text and "teacher `math`" not in text
    assert "LoRA adapter" in text
