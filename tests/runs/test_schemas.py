"""Every JSON file of a run has one shape: written by it, read by it, and refused where it has another."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trustmopd.runs import RunDirectory, whole_checkpoints
from trustmopd.runs.checkpoints import read_manifest
from trustmopd.runs.cost import add_cost, counted_evaluation, device_time, read_cost
from trustmopd.runs.schemas import CalibrationFile, read_file, write_file

pytestmark = pytest.mark.unit

MANIFEST: dict[str, Any] = {
    "run": "mine",
    "models": {"student": {"source": "s"}, "reference": None, "teachers": {"math": {"source": "m"}, "code": None}},
    "prompts": {"fingerprint": "p"},
    "config": {"allocation": "trust", "gamma": 7, "seed": 0, "max_steps": 116},
    "planned_steps": 116,
    "a field of a later release": [1],
}
ROW: dict[str, Any] = {
    "math": 0.5,
    "overall": 0.5,
    "recovery": None,
    "sd": {"math": 0.0, "overall": 0.0},
    "interval": {"math": [0.4, 0.6], "overall": None},
    "seeds": [0],
    "benchmarks": {"aime25": {"domain": "math", "score": 0.5, "sd": 0.0, "prompts": 30, "truncated": 1}},
}


@pytest.mark.parametrize(
    ("file", "payload", "field"),
    [
        ("manifest.json", MANIFEST | {"planned_steps": "116"}, "planned_steps"),
        ("manifest.json", MANIFEST | {"config": MANIFEST["config"] | {"gamma": float("nan")}}, "config.gamma"),
        ("manifest.json", MANIFEST | {"models": MANIFEST["models"] | {"teachers": {"math": 3}}}, "models.teachers"),
        ("manifest.json", MANIFEST | {"models": []}, "models"),
        ("manifest.json", {name: MANIFEST[name] for name in MANIFEST if name != "config"}, "no config"),
        ("manifest.json", MANIFEST | {"config": {"allocation": "trust", "gamma": 7, "seed": 0}}, "no config.max_steps"),
        ("calibration.json", {"mu": {"math": 1.0}, "depends_on": {}, "spread": {}, "tokens": 1, "batches": 1},
         "no global_batch_size"),
        ("cost.json", {"training": {"steps": 3, "seconds": 1.0, "device_hours": 0.1}}, "no training.peak_memory_gib"),
        ("diagnosis.json", {"domains": [], "held_out": True, "separates": None}, "no verdict"),
    ],
)  # fmt: skip
def test_a_file_whose_field_is_missing_or_wrong_is_refused_by_the_field_s_name(
    tmp_path: Path, file: str, payload: dict[str, Any], field: str
) -> None:
    path = tmp_path / file
    path.write_text(json.dumps({"schema_version": 1, **payload}))
    with pytest.raises(ValueError, match=re.escape(f"{path} has {field}")):
        read_file(path, what="", remedy="")


def test_a_field_of_a_later_release_is_kept(tmp_path: Path) -> None:
    path = write_file(tmp_path / "manifest.json", MANIFEST)
    assert read_file(path, what="", remedy="") == MANIFEST


def test_a_folder_in_place_of_a_file_and_a_file_that_may_not_be_read_are_named(tmp_path: Path) -> None:
    folder, locked = tmp_path / "manifest.json", tmp_path / "locked" / "manifest.json"
    folder.mkdir()
    locked.parent.mkdir()
    locked.write_text("{}")
    locked.chmod(0)
    for path in (folder, locked):
        if path.is_dir() or not os.access(path, os.R_OK):  # root may read all files
            with pytest.raises(OSError, match=re.escape(str(path))) as caught:
                read_file(path, what="manifest", remedy="Do this.")
            assert str(caught.value).endswith("Do this.") and "Errno" not in str(caught.value)


def test_scores_have_one_shape_which_is_checked_on_writing_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    assert read_file(write_file(path, {"trust": ROW}), what="", remedy="") == {"trust": ROW}
    for change in ({"overall": None}, {"math": "0.5"}, {"interval": {"math": [0.4]}}, {"benchmarks": {"aime25": {}}}):
        with pytest.raises(TypeError, match=next(iter(change))):
            write_file(path, {"trust": ROW | change})
    path.write_text(json.dumps({"schema_version": 1, "trust": {"math": 0.5, "overall": 0.5, "recovery": None}}))
    with pytest.raises(ValueError, match=r"scores.json has no trust\.sd"):
        read_file(path, what="", remedy="")


def test_a_calibration_has_one_shape_under_any_name(tmp_path: Path) -> None:
    whole = {"mu": {"math": 1}, "depends_on": {}, "spread": {}, "tokens": 1, "batches": 1, "global_batch_size": 1}
    path = write_file(tmp_path / "mine.json", whole, CalibrationFile)
    assert read_file(path, what="", remedy="", schema=CalibrationFile) == whole
    for wrong in ({"mu": {}}, {"mu": {"math": 0}}, {"depends_on": None}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            write_file(path, whole | wrong, CalibrationFile)


def test_a_checkpoint_without_the_id_of_a_run_belongs_to_none(tmp_path: Path) -> None:
    without = {name: MANIFEST[name] for name in MANIFEST if name != "run"}
    for step, payload in ((1, without), (2, MANIFEST), (3, {"run": 3})):
        checkpoint = tmp_path / f"checkpoint-{step}"
        checkpoint.mkdir()
        (checkpoint / "manifest.json").write_text(json.dumps({"schema_version": 1, **payload}))
    assert [path.name for path in whole_checkpoints(tmp_path, "mine")] == ["checkpoint-2"]
    assert len(whole_checkpoints(tmp_path)) == 3
    with pytest.raises(ValueError, match=r"checkpoint-1/manifest\.json has no run"):
        read_manifest(tmp_path / "checkpoint-1")


def test_each_stage_adds_its_part_of_the_cost(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    add_cost(run, device="a device", training={"steps": 1, "peak_memory_gib": 1.0, **device_time(3600, 2)})
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), counted_evaluation(run, 1):
            raise KeyboardInterrupt
    cost = read_cost(run)
    assert cost["training"]["device_hours"] == 2 and cost["device"] == "a device"
    assert cost["evaluation"]["device_hours"] == pytest.approx(cost["evaluation"]["seconds"] / 3600) != 0
    run.cost.write_text(json.dumps({"schema_version": 1, "evaluation": {"seconds": "?"}, "device": "a device"}))
    assert read_cost(run) == {} and run.cost.with_name("cost.json.broken").is_file()


def test_the_run_directory_is_read_without_torch() -> None:
    code = "import sys, trustmopd.runs.schemas, trustmopd.runs.cost; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
