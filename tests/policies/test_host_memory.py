"""Offloaded teachers say what they pin on a node, and are refused where it is not there."""

from types import SimpleNamespace

import psutil
import pytest
import tiny
import torch

from trustmopd.policies import Teacher
from trustmopd.policies.host_memory import check_host_memory


@pytest.mark.parametrize("processes", [1, 8])
def test_every_process_of_a_node_pins_its_own_copy_of_every_model(processes, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    base = tiny.model(hidden=64, tied=False)
    saved = tiny.save(base.bfloat16(), tmp_path / "teacher")
    numbers = sum(p.numel() for p in base.parameters()) - base.lm_head.weight.numel()  # the head stays on the device
    models = [Teacher(model=base), Teacher(model=saved, dtype="float32"), Teacher(model=saved, dtype="auto")]
    needed = processes * numbers * (2 + 4 + 2)
    memory = SimpleNamespace(available=needed)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert f"{needed / 2**30:.3g} GiB" in check_host_memory(models, torch.bfloat16, "offload")
    memory.available = needed - 1
    with pytest.raises(ValueError, match=f"{processes} processes"):
        check_host_memory(models, torch.bfloat16, "offload")
