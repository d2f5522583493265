"""Processes that would go different ways all stop, with one message."""

import json
from pathlib import Path

import agreeing
import pytest
from processes import launch

pytestmark = pytest.mark.distributed


def test_two_processes_decide_fail_and_compare_as_one(tmp_path: Path) -> None:
    launch([agreeing.__file__, str(tmp_path)], processes=2, logs=tmp_path)
    first, second = (json.loads((tmp_path / f"heard-{rank}.json").read_text()) for rank in range(2))
    assert first["first decides"] == second["first decides"] == ["answer", "rank 0"]
    assert first["first fails"] == second["first fails"] == ["error", "no such folder"]
    assert (first["all succeed"], second["all succeed"]) == (["answer", 0], ["answer", 1])
    assert first["second fails"] == second["second fails"]
    assert first["second fails"][0] == "error" and "rank 1" in first["second fails"][1]
    assert "Copy it." in first["second fails"][1]
    assert first["same"] == second["same"] == ["answer", None]
    assert first["different"] == second["different"] and first["different"][0] == "error"
    assert all(part in first["different"][1] for part in ("teacher 'math'", "a0", "a1", "rank 0", "rank 1"))
