"""The card beside the checkpoints names whom the student learnt from, and nothing that is not so."""

import os
from dataclasses import replace

import yaml
from peft import LoraConfig

from trustmopd import __version__
from trustmopd.runs import RunDirectory
from trustmopd.runs.card_results import refresh_card
from trustmopd.runs.cost import read_cost
from trustmopd.runs.schemas import write_file


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
    trainer.identity = replace(trainer.identity, student=replace(trainer.identity.student, source="somebody/some-base"))
    trainer.train()
    front, text = card(tmp_path / "run")
    assert front["library_name"] == "peft" and front["base_model"] == "somebody/some-base"
    assert "one teacher" in text and "`code`" in text and "teacher `math`" not in text
    assert "LoRA adapter" in text


def test_a_card_gets_cost_at_the_end_and_scores_of_this_run_alone(build, checkpoints, tmp_path):
    trainer = build(model=checkpoints["base"], max_steps=2, save_steps=2, run_name="mine")
    run = RunDirectory(tmp_path / "run")
    trainer.train()
    _, text = card(run.path)
    cost = read_cost(run)
    assert f"2 steps took {cost['training']['device_hours']:.3g} device-hours" in text and "Not evaluated" in text
    assert trainer._paper["title"] in text and "@unpublished" in text and __version__ in text

    asked = {"domain": "math", "score": 0.5, "sd": 0.0, "prompts": 4}
    row = {"math": 0.5, "overall": 0.5, "recovery": 0.25, "sd": {}, "interval": {}, "seeds": [0]}
    scores = {"mine": {**row, "benchmarks": {"numbers": asked}, "checkpoint": "checkpoint-2"}}
    write_file(run.scores, scores)
    refresh_card(run, run.path)
    _, scored = card(run.path)
    assert "| mine (checkpoint-2) | 50.0 | 50.0 | 25.0 |" in scored and "numbers" in scored
    refresh_card(run, run.path)
    assert card(run.path)[1] == scored, "it is replaced, not added again"
    trainer.create_model_card()
    assert "| mine (checkpoint-2) |" in card(run.path)[1], "what push_to_hub uploads"

    os.utime(run.scores, (0, 0))  # of a run that was here before
    refresh_card(run, run.path)
    assert "Not evaluated" in card(run.path)[1]


def test_a_card_that_was_rewritten_by_hand_is_left_alone(tmp_path):
    (tmp_path / "README.md").write_text("# Mine\n")
    refresh_card(RunDirectory(tmp_path), tmp_path)
    assert (tmp_path / "README.md").read_text() == "# Mine\n"
