"""Colocated vLLM that hands its memory back while the student trains, and one that is not given its weights."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.cuda.is_available() or find_spec("vllm") is None, reason="needs a GPU and vLLM"),
]
SHARE = 0.1


def ran(*words: str) -> dict[str, Any]:
    """What a run in a process of its own found."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    alone = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_HOST_IP": "127.0.0.1", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, str(here / "sleeping_engine.py"), *words],
        env={**os.environ, **alone},
        stdout=subprocess.PIPE,
        text=True,
    )
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return json.loads(told.removeprefix("FOUND "))


def test_a_skipped_sync_of_an_adapter_is_found_at_a_learning_rate_of_1e_6(tmp_path: Path) -> None:
    assert ran("skipped", "lora", str(tmp_path)) == {"stopped": "StaleWeights", "step": 1}


@pytest.mark.parametrize("case", ["full", "lora"])
def test_a_sleeping_engine_wakes_with_the_students_weights(case: str, tmp_path: Path) -> None:
    found = ran("sleeping", case, str(tmp_path))
    assert len(found["gaps"]) == 3 and max(found["gaps"]) < 0.1
    assert {"model.norm.weight", "model.embed_tokens.weight", "model.layers.0.self_attn.o_proj.weight"} <= set(
        found["compared"]
    )
    pool = SHARE * torch.cuda.get_device_properties(0).total_memory
    assert found["awake"] - found["asleep"] > 0.5 * pool
    assert found["skipped_sync"] == "StaleWeights"
    assert found["failing_engine"] == "EngineError"
