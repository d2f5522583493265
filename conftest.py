"""What every test runs under: no network, one thread a process, and the shapes in signatures checked."""

import os
import sys

# Before anything imports a library that reads them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Also for the processes that tests start. Tensors here are small: threads cost more than they bring, and the workers of
# `pytest -n` would take the cores from each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from jaxtyping import install_import_hook

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # the kernels' logic, program by program, on the CPU

torch.set_num_threads(1)

# From here on `Float[Tensor, "K *N C"]` is a check and not a comment: a call with wrong shapes raises. It reaches only
# modules imported later, so nothing of the package may be imported above. The tower lets 7 pass for the float 7.0.
# Triton's kernels stay as they are: Triton compiles their source.
CHECKED = ["head", "reference", "chunked", "fused", "fused_objective", "shared"]
install_import_hook(
    ["trustmopd.method", *(f"trustmopd.heads.{name}" for name in CHECKED)],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)


@pytest.fixture(scope="session", autouse=True)
def own_extensions(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where DeepSpeed compiles. In the user's folder, a build that was killed leaves a lock that everyone after it
    waits for, without a word and without end."""
    os.environ["TORCH_EXTENSIONS_DIR"] = str(tmp_path_factory.mktemp("torch_extensions"))


@pytest.fixture(autouse=True)
def unit_tests_train_nothing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `make test-fast` runs stays fast."""
    trainer = sys.modules.get("transformers.trainer")
    if trainer is not None and request.node.get_closest_marker("unit"):
        monkeypatch.setattr(trainer.Trainer, "train", lambda *_, **__: pytest.fail("a unit test trains nothing"))
