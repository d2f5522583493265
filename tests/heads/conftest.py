"""Heads to compare on: random weights and hidden states, and chunk budgets small enough that small tensors are cut."""

import sys
from pathlib import Path

import pytest

from trustmopd.heads import blocks, chunked

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["one_chunk", "many_chunks"])
def chunks(request, monkeypatch):
    """The shipped budgets take a small test in one piece; 300 bytes cut it into many, the last one short."""
    if request.param == "many_chunks":
        monkeypatch.setattr(chunked, "ROWS_BYTES", dict.fromkeys(chunked.ROWS_BYTES, 300))
        for module, budget in ((chunked, "BLOCK_BYTES"), (chunked, "GRADIENT_BLOCK_BYTES"), (blocks, "TILE_BYTES")):
            monkeypatch.setattr(module, budget, 300)
