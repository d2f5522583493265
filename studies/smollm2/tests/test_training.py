"""From the weights to a specialist: the adapter, the merge, and a training that is interrupted and goes on."""

import copy
import random
import shutil
from dataclasses import replace

import pytest
import tiny
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from studies.smollm2 import stories
from studies.smollm2.lora import ADAPTER, changes, lora_config, save_adapter
from studies.smollm2.reinforcement import reached, train_specialist
from studies.smollm2.settings import Base, Specialist
from studies.smollm2.supervised import make_base
from studies.smollm2.weights import find_gguf, save_base
from trustmopd.policies.fingerprint import fingerprint

SHORT = Specialist(
    max_steps=2, prompts_per_step=2, generations=2, micro_batches=2, max_prompt_tokens=1000, max_new_tokens=4
)


@pytest.fixture(scope="module")
def trained():
    """A small model with an adapter that changes every linear layer."""
    torch.manual_seed(0)
    model = get_peft_model(tiny.model(0), lora_config())
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.fixture(scope="module")
def adapter(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter") / "one"
    save_adapter(trained, folder)
    return folder


def test_an_adapter_is_stored_in_bfloat16_on_every_linear_layer(adapter):
    tensors = load_file(adapter / ADAPTER)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert len(changes(adapter)) == 7 * tiny.model(0).config.num_hidden_layers


def test_a_scaled_adapter_adds_that_share_to_the_weights(trained, adapter, tmp_path):
    save_adapter(trained, tmp_path / "half", 0.5)
    whole, half = changes(adapter), changes(tmp_path / "half")
    assert all(torch.equal(half[name], 0.5 * change) for name, change in whole.items())


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


def test_a_base_is_made_of_solutions_and_only_merged_where_its_adapter_is_there(base, tmp_path):
    how = Base(max_prompt_tokens=1000, max_new_tokens=400, epochs=1, batch_size=4)

    def load():
        return AutoModelForCausalLM.from_pretrained(base), tiny.tokenizer()

    def make(out):
        make_base(out, load, lambda: stories.tasks(8, random.Random(0)), how)

    make(tmp_path / "study")
    shutil.copytree(tmp_path / "study", tmp_path / "copy", ignore=shutil.ignore_patterns("base"))
    shutil.copytree(tmp_path / "study" / "adapters" / "base", tmp_path / "copy" / "adapters" / "base")
    make(tmp_path / "copy")
    weights = [load_file(tmp_path / name / "base" / "model.safetensors") for name in ("study", "copy")]
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())

    shutil.rmtree(tmp_path / "copy" / "base")
    file = tmp_path / "copy" / "adapters" / "base" / ADAPTER
    save_file({name: 2 * tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(ValueError, match="fingerprint"):
        make(tmp_path / "copy")
    assert not (tmp_path / "copy" / "base").exists()


def test_another_file_is_not_taken_for_the_weights(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"model\.gguf"):
        find_gguf(tmp_path / "model.gguf")
    with pytest.raises(FileNotFoundError, match=r"none\.gguf"):
        find_gguf(tmp_path / "none.gguf")


def test_training_ends_when_the_reward_has_risen_far_enough():
    how = Specialist(window=2, target_gain=0.3)
    assert not reached([0.1, 0.1, 0.9], how)  # fewer than two windows
    assert not reached([0.1, 0.1, 0.3, 0.4], how)
    assert reached([0.1, 0.1, 0.2, 0.4, 0.5], how)


def test_a_specialist_goes_on_from_its_last_whole_checkpoint(base, tmp_path):
    out, scratch = tmp_path / "math", tmp_path / "checkpoints"
    tasks = stories.tasks(20, random.Random(0))
    first = train_specialist(base, tasks, replace(SHORT, save_every=2), out, scratch)
    assert first["steps"] == 2 and (out / ADAPTER).is_file()
    (scratch / "checkpoint-9").mkdir()  # begun, and killed
    second = train_specialist(base, tasks, replace(SHORT, max_steps=3, save_every=10), out, scratch)
    assert second["steps"] == 3
    assert second["rewards"][:2] == first["rewards"] and second["seconds"][:2] == first["seconds"]


def test_a_specialist_stops_at_its_target(base, tmp_path):
    how = replace(SHORT, max_steps=9, window=1, target_gain=0.0)
    made = train_specialist(base, stories.tasks(20, random.Random(0)), how, tmp_path / "math", tmp_path / "checkpoints")
    assert made["steps"] == 2
