"""The memory of a run as it is, and what is refused for want of it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import tiny
import torch
from peft import LoraConfig
from trl.trainer.utils import create_model_from_path

from trustmopd import Teacher, TrustMOPDConfig
from trustmopd.planning.memory import frozen_weights
from trustmopd.planning.this_machine import UnknownMemory, run_here
from trustmopd.planning.workload import student_dtype_of
from trustmopd.policies import resolve

pytestmark = pytest.mark.unit


def settings(folder: Path, **given: object) -> TrustMOPDConfig:
    return TrustMOPDConfig(output_dir=str(folder), use_cpu=True, bf16=True, **given)


def test_each_frozen_model_is_counted_where_it_lives_teachers_own_references_too(tmp_path: Path) -> None:
    base, larger = tiny.model(0), tiny.model(5, hidden=64)
    student, other = tiny.save(base, tmp_path / "student"), tiny.save(larger, tmp_path / "other")
    size, bigger = (sum(p.numel() for p in model.parameters()) for model in (base, larger))
    head, wide = (model.lm_head.weight.numel() for model in (base, larger))
    named = {"math": Teacher(model=student, reference=other), "code": Teacher(model=student, dtype="float32")}

    def counted(teachers: dict[str, Teacher], lora: LoraConfig | None = None) -> tuple[float, float]:
        need = run_here(resolve(teachers, None, student), student, settings(tmp_path), lora, 64)
        return frozen_weights(need.work, need.setup)

    here = 2 * size + 4 * size + 2 * size + 2 * bigger
    assert counted(named) == (here, here)
    lent = here - 2 * size  # the initial student is the base of a LoRA student
    assert counted(named, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")) == (lent, lent)
    away = {**named, "code": replace(named["code"], on="ray")}
    assert counted(away) == (here - 4 * size, here - 4 * size)
    elsewhere = {**named, "code": Teacher(model=str(tmp_path / "of another machine"), on="ray")}
    assert counted(elsewhere) == (here - 4 * size, here - 4 * size)
    reference = Teacher(model=other, on="offload")
    offloaded = {"math": Teacher(model=student, reference=reference, on="offload"), "code": named["code"]}
    kept = 2 * head + 2 * wide + 4 * size + 2 * size
    assert counted(offloaded) == (kept, kept + 2 * (size - head) + 2 * (bigger - wide))


def test_counting_leaves_the_random_numbers_of_a_run_alone(tmp_path: Path) -> None:
    student = tiny.save(tiny.model(0), tmp_path / "student")
    graph = resolve({"math": Teacher(adapter=str(tmp_path / "adapter"))}, None, student)
    before = torch.get_rng_state()
    run_here(graph, student, settings(tmp_path), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"), 64)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_cannot_be_counted_is_not_known_rather_than_refused(tmp_path: Path) -> None:
    student = tiny.save(tiny.model(0), tmp_path / "student")
    graph = resolve({"math": str(tmp_path / "nowhere")}, None, student)
    with pytest.raises(UnknownMemory, match="teacher 'math'.*nowhere"):
        run_here(graph, student, settings(tmp_path), None, 64)


@pytest.mark.parametrize("processes", [1, 8])
def test_every_process_of_a_node_pins_its_own_copy_of_every_model(processes, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    base = tiny.model(hidden=64, tied=False)
    saved = tiny.save(base.bfloat16(), tmp_path / "teacher")
    numbers = sum(p.numel() for p in base.parameters()) - base.lm_head.weight.numel()  # the head stays on the device
    teachers = {"a": base, "b": Teacher(model=saved, dtype="float32"), "c": Teacher(model=saved, dtype="auto")}
    needed = processes * numbers * (2 + 4 + 2)
    memory = SimpleNamespace(available=needed, total=2**36)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    graph = resolve(teachers, None, saved, placement="offload", with_reference=False)
    need = run_here(graph, saved, settings(tmp_path), None, 64)
    assert f"{needed / 2**30:.3g} GiB" in need.check_host_memory("offload")
    memory.available = needed - 1
    with pytest.raises(ValueError, match=f"{processes} processes"):
        need.check_host_memory("offload")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, torch.float32),
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({"dtype": torch.float16}, torch.float16),
        ({"dtype": "auto"}, torch.bfloat16),
    ],
)
def test_the_students_dtype_is_the_one_that_is_loaded(
    given: dict[str, object], expected: torch.dtype, tmp_path: Path
) -> None:
    student = tiny.save(tiny.model(0).to(torch.bfloat16), tmp_path / "student")
    args = settings(tmp_path, model_init_kwargs=given)
    assert create_model_from_path(student, **given).dtype == student_dtype_of(args, student) == expected
    assert student_dtype_of(args, tiny.model(0).to(torch.bfloat16)) == torch.bfloat16
