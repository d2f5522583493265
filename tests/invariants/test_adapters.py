"""Adapters over one base: the policies of full checkpoints in one set of weights, and none touches another."""

import copy
from collections.abc import Iterable
from pathlib import Path

import pytest
import replay
import tiny
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel

from trustmopd import Teacher
from trustmopd.policies import fingerprint

LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
#: Two steps: the A of a fresh adapter has a gradient from the second one only, when its B is no longer 0.
STEPS = {
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "gradient_checkpointing": True,
}
FRESH = {"peft_config": LORA, **STEPS}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: tiny.adapter(tiny.model(), folder / name, seed) for seed, name in enumerate(replay.TEACHERS, 1)}


@pytest.fixture(scope="module")
def as_adapters(adapters: dict[str, Path]) -> dict[str, Teacher]:
    return {name: Teacher(adapter=path) for name, path in adapters.items()}


@pytest.fixture(scope="module")
def as_checkpoints(adapters: dict[str, Path]) -> dict[str, PreTrainedModel]:
    return {name: merged(PeftModel.from_pretrained(tiny.model(), path)) for name, path in adapters.items()}


@pytest.fixture(scope="module")
def shared(as_adapters: dict[str, Teacher], tmp_path_factory: pytest.TempPathFactory) -> replay.Run:
    """A LoRA student and its teachers over one base, after two steps and a checkpoint."""
    folder = tmp_path_factory.mktemp("shared")
    trainer = replay.trainer_of(folder, teachers=as_adapters, save_strategy="steps", save_steps=2, **FRESH)
    trainer.fingerprints = {name: fingerprint(member.host.model) for name, member in trainer.pool.members.items()}
    return replay.trained(trainer)


def merged(model: PeftModel) -> PreTrainedModel:
    return copy.deepcopy(model).merge_and_unload()


def trained_student() -> PeftModel:
    torch.manual_seed(11)
    return get_peft_model(tiny.model(), LoraConfig(**{**LORA.to_dict(), "init_lora_weights": False}))


def check_same_steps(run: replay.Run, other: replay.Run) -> None:
    assert len(run.gradients) == len(other.gradients) == 2
    for step, gradient in enumerate(run.gradients):
        assert replay.difference(gradient, other.gradients[step]) < 1e-5
        assert run.token_metrics(step) == pytest.approx(other.token_metrics(step), rel=1e-5)


def storages(modules: Iterable[nn.Module]) -> dict[int, int]:
    """Bytes by address of what the parameters lie in."""
    found = (parameter.untyped_storage() for module in modules for parameter in module.parameters())
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def test_adapter_teachers_and_the_shared_base_give_the_gradient_of_full_checkpoints(shared, as_checkpoints, tmp_path):
    apart = replay.run(tmp_path, teachers=as_checkpoints, reference=tiny.model(), **FRESH)
    assert all("lora_" in name for name in shared.gradient)
    check_same_steps(apart, shared)


def test_all_policies_share_one_set_of_weights(shared, adapters):
    hosts = {member.host for member in shared.trainer.pool.members.values()}
    assert len(hosts) == 1
    held = storages([shared.trainer.model, *(host.model for host in hosts)])
    one_adapter = sum(tensor.nbytes for tensor in load_file(adapters["math"] / "adapter_model.safetensors").values())
    base = sum(storages([tiny.model()]).values())
    assert sum(held.values()) == base + (1 + len(adapters)) * one_adapter


def test_the_students_adapter_stays_active_and_alone_trainable_after_teachers_were_asked(shared):
    student = shared.trainer.model
    assert list(student.peft_config) == [student.active_adapter] == ["default"]
    trainable = {name for name, parameter in student.named_parameters() if parameter.requires_grad}
    assert trainable == set(shared.gradient)
    with student.disable_adapter():
        base_logits = student(torch.tensor([[5, 6, 7]])).logits
    assert (student(torch.tensor([[5, 6, 7]])).logits - base_logits).abs().max() > 1e-3


def test_training_leaves_the_teachers_and_the_reference_as_they_were(shared):
    trainer = shared.trainer
    for name, member in trainer.pool.members.items():
        assert fingerprint(member.host.model) == trainer.fingerprints[name]
        assert not any(parameter.requires_grad for parameter in member.host.model.parameters())
    optimized = {id(parameter) for group in trainer.optimizer.param_groups for parameter in group["params"]}
    assert optimized == {id(parameter) for parameter in trainer.model.parameters() if parameter.requires_grad}


def test_a_checkpoint_holds_the_students_adapter_alone_and_loads_with_peft(shared):
    checkpoint = Path(shared.trainer.args.output_dir) / "checkpoint-2"
    assert len(list(checkpoint.rglob("adapter_model.safetensors"))) == 1
    assert not any("teacher-" in str(path) for path in checkpoint.rglob("*"))
    saved = load_file(checkpoint / "adapter_model.safetensors")
    assert len(saved) == len(shared.gradient) and not any("teacher-" in name for name in saved)
    loaded = PeftModel.from_pretrained(tiny.model(), checkpoint).eval()
    tokens = torch.tensor([replay.prompt_ids(1)[0]])
    shared.trainer.model.eval()
    torch.testing.assert_close(loaded(tokens).logits, shared.trainer.model(tokens).logits)


def test_a_fully_trained_student_leaves_adapter_teachers_a_base_of_their_own(as_adapters, as_checkpoints, tmp_path):
    over_one_base = replay.run(tmp_path / "adapters", teachers=as_adapters, **STEPS)
    apart = replay.run(tmp_path / "apart", teachers=as_checkpoints, reference=tiny.model(), **STEPS)
    check_same_steps(apart, over_one_base)
    pool = over_one_base.trainer.pool
    (host,) = {member.host for member in pool.members.values()}
    assert not storages([over_one_base.trainer.model]).keys() & storages([host.model]).keys()


@pytest.mark.parametrize("teachers", ["as_adapters", "as_checkpoints"])
def test_the_reference_of_a_trained_adapter_student_is_the_student_as_it_began(teachers, request, tmp_path):
    teachers = request.getfixturevalue(teachers)
    student = trained_student()
    given = replay.run(tmp_path / "given", student=student, teachers=teachers, **STEPS)
    apart = replay.run(
        tmp_path / "apart",
        student=trained_student(),
        teachers=request.getfixturevalue("as_checkpoints"),
        reference=merged(trained_student()),
        **STEPS,
    )
    check_same_steps(apart, given)
    assert (
        student(torch.tensor([[5, 6, 7]])).logits - trained_student()(torch.tensor([[5, 6, 7]])).logits
    ).abs().max() > 1e-3


def test_a_reference_given_as_a_loaded_model_keeps_its_adapter(adapters, as_checkpoints, tmp_path):
    loaded = PeftModel.from_pretrained(tiny.model(), adapters["math"])
    given = replay.run(tmp_path / "given", reference=loaded, **STEPS)
    apart = replay.run(tmp_path / "apart", reference=as_checkpoints["math"], **STEPS)
    check_same_steps(apart, given)


@pytest.mark.parametrize("how", ["lora", "full"])
def test_the_students_own_object_can_be_a_teacher_and_the_base_of_another(how, adapters, as_checkpoints, tmp_path):
    options = {**(FRESH if how == "lora" else STEPS), "allocation": "uniform"}
    student = tiny.model()
    teachers = {"calm": student, "math": Teacher(model=student, adapter=adapters["math"])}
    one = replay.run(tmp_path / "one", student=student, teachers=teachers, **options)
    teachers = {"calm": tiny.model(), "math": as_checkpoints["math"]}
    check_same_steps(replay.run(tmp_path / "apart", teachers=teachers, **options), one)
