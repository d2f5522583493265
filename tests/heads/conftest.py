"""Heads to compare on: random weights and hidden states, and chunk budgets small enough that small tensors are cut."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from trustmopd.heads import chunked, shared

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["chunked", "fused"])
def head(request):
    """Either way not to make all logits."""
    if request.param == "fused" and find_spec("triton") is None:
        pytest.skip("needs triton")
    return import_module(f"trustmopd.heads.{request.param}")


@pytest.fixture(params=["one_chunk", "many_chunks"])
def chunks(request, monkeypatch):
    """The shipped budgets take a small test in one piece; these cut it into many, the last one short."""
    if request.param == "one_chunk":
        return
    monkeypatch.setattr(chunked, "ROWS_BYTES", dict.fromkeys(chunked.ROWS_BYTES, 300))
    for module, budget in ((chunked, "BLOCK_BYTES"), (chunked, "GRADIENT_BLOCK_BYTES"), (shared, "TILE_BYTES")):
        monkeypatch.setattr(module, budget, 300)
    if find_spec("triton") is not None:  # a few tokens at a time, in groups of 8 columns
        fused = import_module("trustmopd.heads.fused")
        monkeypatch.setattr(fused, "BLOCK_BYTES", 4000)
        monkeypatch.setattr(fused, "COLUMNS", 128)
