"""The kernels go through Triton's compiler as well, for GPUs that this machine does not have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SCRIPT = Path(__file__).with_name("compile_kernels.py")
KERNELS = {"row_products", "weighted_rows", "group_maxima", "choose_candidates", "trust_at_token"}


@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles_to_machine_code(capability, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    made = subprocess.run(
        [sys.executable, SCRIPT, str(capability)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert made.returncode == 0, made.stderr[-2000:]
    sizes = [line.split() for line in made.stdout.splitlines()]
    assert {name for name, _ in sizes} == KERNELS
    assert all(int(size) > 1000 for _, size in sizes)
