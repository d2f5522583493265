"""Supervised training on the teachers' own responses, with the checkpoints that ship."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file
from transformers import AutoTokenizer

from trustmopd import load_recipe
from trustmopd.quickstart.experiment import Experiment, Scale
from trustmopd.quickstart.shipped import checkpoint
from trustmopd.quickstart.tasks import DOMAINS
from trustmopd.training.supervised import sft_recipe

STEPS, BATCH = 2, 12


@pytest.fixture
def recipe_of(tmp_path):
    """Of a few steps; `labels` keeps the prompts' own, or drops them."""

    def make(labels=True, **fields):
        scale = Scale(steps=STEPS, batch_size=BATCH)
        teachers = {name: str(checkpoint(name)) for name in DOMAINS}
        made = Experiment(tmp_path, scale, str(checkpoint("reference")), teachers).recipe(
            "tiny", "singlecap", {}, 0, tmp_path / "run"
        )
        rows = [json.loads(line) for line in Path(made.prompts.path).read_text().splitlines()]
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps(row if labels else row | {"domain": None}) + "\n" for row in rows))
        given = yaml.safe_load(made.to_yaml())
        given |= {"prompts": {"path": str(path)}, **fields}
        given["training"] |= {"use_cpu": True, "save_only_model": False, "calibration_batches": 1}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(given))
        return load_recipe(tmp_path / "recipe.yaml")

    return make


def responses(recipe):
    return [json.loads(line) for line in (recipe.output / "sft/responses.jsonl").read_text().splitlines()]


def test_each_prompt_is_answered_by_the_teacher_of_its_label_and_the_student_learns_from_it(recipe_of):
    recipe = recipe_of()
    student = sft_recipe(recipe)
    prompts = [json.loads(line) for line in Path(recipe.prompts.path).read_text().splitlines()]
    made = responses(recipe)
    assert len(made) == STEPS * BATCH and all(line["teacher"] == prompts[int(line["id"])]["domain"] for line in made)
    before, after = (load_file(Path(folder) / "model.safetensors") for folder in (recipe.student, student))
    assert any(not before[name].equal(after[name]) for name in before)
    journal = (recipe.output / "sft/responses.jsonl").read_bytes()
    sft_recipe(recipe)
    assert (recipe.output / "sft/responses.jsonl").read_bytes() == journal, "nothing is sampled twice"


def test_prompts_are_rendered_as_distillation_renders_them(recipe_of, tmp_path):
    """A template that has to be told how to think."""
    folders = {name: shutil.copytree(checkpoint(name), tmp_path / name) for name in ("reference", *DOMAINS)}
    for folder in folders.values():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        demand = "{% if thinking is not defined %}{{ raise_exception('thinking?') }}{% endif %}"
        tokenizer.chat_template = demand + tokenizer.chat_template
        tokenizer.save_pretrained(folder)
    recipe = recipe_of(student=str(folders["reference"]), teachers={name: str(folders[name]) for name in DOMAINS})
    recipe.training["chat_template_kwargs"] = {"thinking": False}
    assert (sft_recipe(recipe) / "model.safetensors").is_file()


def test_a_prompt_without_a_label_is_answered_by_the_teacher_that_moved_most_there(recipe_of):
    recipe = recipe_of(labels=False, peft={"r": 4, "target_modules": "all-linear"})
    student = sft_recipe(recipe)
    assert (student / "adapter_config.json").is_file()
    assert {line["teacher"] for line in responses(recipe)} <= {*DOMAINS}


def test_responses_that_are_not_accepted_are_left_out_and_a_teacher_without_any_is_told(recipe_of):
    recipe, asked = recipe_of(), []

    def accepts(row, response):
        asked.append((row["domain"], response))
        return row["domain"] != "code"

    with pytest.raises(ValueError, match="'code' none was whole and accepted"):
        sft_recipe(recipe, accepts)
    assert {domain for domain, _ in asked} == {*DOMAINS} and all(isinstance(text, str) for _, text in asked)
