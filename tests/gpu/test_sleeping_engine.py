"""Colocated vLLM that hands its memory back while the student trains."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.cuda.is_available() or find_spec("vllm") is None, reason="needs a GPU and vLLM"),
]
SHARE = 0.1


@pytest.mark.parametrize("case", ["full", "lora"])
def test_a_sleeping_engine_wakes_with_the_students_weights(case: str, tmp_path: Path) -> None:
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    alone = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_HOST_IP": "127.0.0.1", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, str(here / "sleeping_engine.py"), case, str(tmp_path)],
        env={**os.environ, **alone},
        stdout=subprocess.PIPE,
        text=True,
    )
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(told.removeprefix("FOUND "))
    assert len(found["gaps"]) == 3 and max(found["gaps"]) < 0.1
    assert {"model.norm.weight", "model.embed_tokens.weight", "model.layers.0.self_attn.o_proj.weight"} <= set(
        found["compared"]
    )
    pool = SHARE * torch.cuda.get_device_properties(0).total_memory
    assert found["awake"] - found["asleep"] > 0.5 * pool
    assert found["skipped_sync"] == "StaleWeights"
    assert found["failing_engine"] == "EngineError"
