"""vLLM itself, on a CPU: `make test-vllm` runs this folder in an environment of its own. It is not called `vllm`, which
would be taken for the package."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import tiny
from transformers import SmolLM3Config

from trustmopd import TrustMOPDConfig, TrustMOPDTrainer

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
os.environ |= {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "VLLM_CPU_KVCACHE_SPACE": "1"}

SETTINGS: dict[str, Any] = {
    "use_vllm": True,
    "model_init_kwargs": {"dtype": "float32"},
    "num_candidates": 16,
    "max_completion_length": 12,
    "global_batch_size": 8,
    "per_device_train_batch_size": 4,
    "calibration_batches": 1,
    "max_steps": 3,
    "learning_rate": 1e-2,
    "warmup_steps": 0,
    "save_strategy": "no",
    "record_allocation_every": 0,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Students with a tied and an untied head, one that vLLM runs with transformers' code, and teachers of each. vLLM's
    CPU kernels want heads of 32."""
    folder = tmp_path_factory.mktemp("world")
    families: dict[str, dict[str, Any]] = {"tied": {}, "untied": {"tied": False}, "smollm3": {"family": SmolLM3Config}}
    for name, given in families.items():
        base = tiny.model(0, hidden=128, **given)
        tiny.save(base, folder / name)
        tiny.save(tiny.specialist(base, 1), folder / f"{name}-math")
        tiny.save(tiny.specialist(base, 2), folder / f"{name}-code")
    return folder


@pytest.fixture(scope="session")
def settings() -> dict[str, Any]:
    return SETTINGS


@pytest.fixture
def build(world: Path, tmp_path: Path) -> Any:
    def trainer(student: str = "tied", folder: str = "run", peft_config: Any = None, **settings: Any) -> Any:
        return TrustMOPDTrainer(
            str(world / student),
            {name: str(world / f"{student}-{name}") for name in ("math", "code")},
            args=TrustMOPDConfig(output_dir=str(tmp_path / folder), **SETTINGS | settings),
            train_dataset=tiny.prompts(32),
            peft_config=peft_config,
        )

    return trainer
