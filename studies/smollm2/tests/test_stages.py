"""From the weights to a specialist: settings, the merge, a training that is stopped and gone on with, and slips."""

import copy
import json
import random
import shutil
import time

import pytest
import tiny
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from studies.smollm2 import stories
from studies.smollm2.lora import ADAPTER, changes, lora_config, save_adapter
from studies.smollm2.policy_scores import Sampler, score
from studies.smollm2.reinforcement import finished, reached, train_specialist
from studies.smollm2.settings import Lora, Scoring, Settings, Specialist
from studies.smollm2.weights import save_base
from trustmopd.cli import app
from trustmopd.policies.fingerprint import fingerprint


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """Of a small model, with a change on every linear layer."""
    torch.manual_seed(0)
    model = get_peft_model(copy.deepcopy(tiny.model(0)), lora_config(Lora(rank=2)))
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.1)
    folder = tmp_path_factory.mktemp("adapter") / "one"
    save_adapter(model, folder)
    return folder


def run(*arguments):
    return CliRunner().invoke(app, ["reproduce", "smollm2", *map(str, arguments)])


def test_settings_are_changed_by_name_and_survive_the_card():
    settings = Settings().with_changes(["base.epochs=2", "specialist.learning_rate=5e-5", "seed=3"])
    assert (settings.base.epochs, settings.specialist.learning_rate, settings.seed) == (2.0, 5e-5, 3)
    assert Settings.model_validate(json.loads(json.dumps(settings.model_dump()))) == settings


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("base.epoch=2", "base.epoch = 2"),
        ("base=2", "base = 2"),
        ("seed.x=1", "seed = {'x': 1}"),
        ("seed", "'seed'"),
        ("base.svamp=many", "base.svamp = 'many'"),
        ("base.svamp=1.5", "base.svamp = 1.5"),
        ("base.svamp=700", "base.svamp = 700"),
        ("scoring.prompts=0", "scoring.prompts = 0"),
        ("distil.steps=0", "distil.steps = 0"),
    ],
)
def test_a_setting_that_is_none_is_named(change, named, tmp_path):
    result = run(change, "--out", tmp_path)
    assert result.exit_code == 1
    assert named in result.stderr


@pytest.mark.parametrize("slip", [("--stage", "bas"), ("--only", "maths"), ("--data", "svamp"), ("--data", "svam=x")])
def test_a_name_that_is_none_is_named(slip, tmp_path):
    result = run(*slip, "--out", tmp_path)
    assert result.exit_code == 1
    assert slip[1] in result.stderr


def test_another_file_is_not_taken_for_the_weights(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for name in ("model.gguf", "none.gguf"):
        result = run("--stage", "base", "--gguf", tmp_path / name, "--out", tmp_path / "out")
        assert result.exit_code == 1
        assert name in result.stderr


def test_training_ends_when_the_reward_has_risen_far_enough():
    how = Specialist(window=2, target_gain=0.3)
    assert not reached([0.1, 0.1, 0.9], how)  # fewer than two windows
    assert not reached([0.1, 0.1, 0.3, 0.4], how)
    assert reached([0.1, 0.1, 0.2, 0.4, 0.5], how)


def test_an_adapter_is_stored_in_bfloat16_on_every_linear_layer(adapter):
    tensors = load_file(adapter / ADAPTER)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert len(changes(adapter)) == 7 * tiny.model(0).config.num_hidden_layers


def test_the_merge_is_the_sum_in_float64_rounded_once(adapter, tmp_path):
    model = tiny.model(0)
    name = save_base(model, tiny.tokenizer(), adapter, tmp_path / "base")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert merged.dtype == torch.bfloat16
    assert fingerprint(merged) == name
    peft = PeftModel.from_pretrained(copy.deepcopy(model).double(), adapter, autocast_adapter_dtype=False)
    expected = dict(peft.double().merge_and_unload().named_parameters())
    changed = 0
    for parameter, value in merged.named_parameters():
        assert torch.equal(value, expected[parameter].to(torch.bfloat16))
        changed += not torch.equal(value, model.get_parameter(parameter).to(torch.bfloat16))
    assert changed == len(changes(adapter))


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_on_a_cpu_policies_are_scored_in_bfloat16_if_it_has_products_in_it(has_bfloat16, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bfloat16)
    save_base(tiny.model(0), tiny.tokenizer(), None, tmp_path)
    sampler = Sampler(tmp_path, Settings(lora=Lora(rank=2)), [])
    assert {each.dtype for each in sampler.model.parameters()} == {torch.bfloat16 if has_bfloat16 else torch.float32}


def test_base_and_adapters_take_turns_in_one_model(adapter, tmp_path):
    base = tmp_path / "base"
    save_base(tiny.model(0), tiny.tokenizer(), None, base)
    tasks = {"math": stories.tasks(3, random.Random(0))}
    policies = {"base": None, "moved": adapter, "again": None}
    settings = Settings(max_new_tokens=40, lora=Lora(rank=2), scoring=Scoring(samples=2, batch_size=4))
    matrix, responses = score(base, policies, tasks, settings)
    assert [(name, *row) for name, row in matrix.items()] == [(name, "math") for name in policies]
    said = {name: [row["response"] for row in responses if row["policy"] == name] for name in policies}
    assert len(said["base"]) == 6
    assert said["base"] == said["again"] != said["moved"]


@pytest.mark.slow
def test_a_specialist_stopped_at_its_deadline_goes_on_from_its_checkpoint(tmp_path):
    base, out, scratch = tmp_path / "base", tmp_path / "math", tmp_path / "checkpoints"
    save_base(tiny.model(0), tiny.tokenizer(), None, base)
    settings = Settings(
        max_prompt_tokens=1000,
        lora=Lora(rank=2),
        specialist_math=Specialist(
            max_steps=3, prompts_per_step=2, generations=2, micro_batches=2, max_new_tokens=4, save_every=10
        ),
    )
    tasks = stories.tasks(20, random.Random(0))
    first = train_specialist("math", base, tasks, settings, out, scratch, time.monotonic())
    assert first["steps"] == 1
    assert not finished(first["rewards"], settings.specialist_math)
    assert (out / ADAPTER).is_file()
    (scratch / "checkpoint-2").mkdir()  # begun, and killed
    second = train_specialist("math", base, tasks, settings, out, scratch, None)
    assert second["steps"] == 3
    assert finished(second["rewards"], settings.specialist_math)
    assert not reached(second["rewards"], settings.specialist_math)
    assert second["rewards"][0] == first["rewards"][0]
    assert len(second["rewards"]) == len(second["kl"]) == 3


@pytest.mark.slow
def test_a_specialist_whose_checkpoints_are_lost_goes_on_from_its_adapter(adapter, tmp_path):
    base, out = tmp_path / "base", tmp_path / "math"
    save_base(tiny.model(0), tiny.tokenizer(), None, base)
    shutil.copytree(adapter, out)
    settings = Settings(
        max_prompt_tokens=1000,
        lora=Lora(rank=2),
        specialist_math=Specialist(max_steps=6, prompts_per_step=2, generations=2, learning_rate=0.0, max_new_tokens=4),
    )
    earlier = {name: [0.5] * 5 for name in ("rewards", "kl", "lengths", "seconds")}
    tasks = stories.tasks(20, random.Random(0))
    made = train_specialist("math", base, tasks, settings, out, tmp_path / "none", None, earlier)
    assert (made["steps"], made["rewards"][:5]) == (6, [0.5] * 5)
    assert made["kl"][5] > 0  # not from zero: the adapter was there before the step
    before, after = load_file(adapter / ADAPTER), load_file(out / ADAPTER)
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.slow
def test_a_specialist_that_went_on_from_its_adapter_and_was_stopped_keeps_the_steps_before(adapter, tmp_path):
    base, out, scratch = tmp_path / "base", tmp_path / "math", tmp_path / "checkpoints"
    save_base(tiny.model(0), tiny.tokenizer(), None, base)
    shutil.copytree(adapter, out)
    how = Specialist(max_steps=7, prompts_per_step=2, generations=2, max_new_tokens=4)
    settings = Settings(max_prompt_tokens=1000, lora=Lora(rank=2), specialist_math=how)
    earlier = {name: [0.5] * 4 for name in ("rewards", "kl", "lengths", "seconds", "no_variance")}
    given = ("math", base, stories.tasks(20, random.Random(0)), settings, out, scratch)
    stopped = train_specialist(*given, time.monotonic(), earlier)
    assert stopped["steps"] == 5
    ended = train_specialist(*given, None, stopped)
    assert ended["steps"] == len(ended["kl"]) == 7
    assert ended["rewards"][:5] == stopped["rewards"]
