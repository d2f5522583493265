"""The comparison with teachers of two bases, cut down to seconds, from the command line."""

import csv
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from small_world import CUT_DOWN, SMALL
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from studies.small_world import build_world as building
from studies.small_world import reproduce, two_bases
from studies.small_world.cells import Cell, finished_cells
from studies.small_world.tokenizer import make_tokenizer
from trustmopd.cli import app
from trustmopd.quickstart import DOMAINS
from trustmopd.quickstart.shipped import SHIPPED

ROWS = ["trust", "uniform", "routed", "response-level", "trust-from-student", "response-level-from-student"]


def moved_a_little(domain: str, reference: Path, out: Path, *_: Any, **__: Any) -> dict[str, Any]:
    """In place of GRPO, which needs a reference that is sometimes right."""
    tiny.save(
        tiny.specialist(LlamaForCausalLM.from_pretrained(reference), DOMAINS.index(domain)), out, make_tokenizer()
    )
    return {"steps": 1, "reached_target": False, "rewards": [0.0], "kl": [0.0]}


def run(out: Path, *arguments: str, code: int = 0) -> str:
    words = ["reproduce", "testbed", "--pool", "two-bases", "--seeds", "1", "--out", str(out), *arguments]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "Scale", lambda: SMALL)
        patch.setattr(two_bases, "SUPERVISION", CUT_DOWN["supervision"])
        patch.setattr(two_bases, "build_world", partial(building.build_world, evaluation_prompts=8, quiet=True))
        patch.setattr(building, "build_specialist", moved_a_little)
        result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two-bases")
    run(out, "--only", "singlecap")
    return out


def manifest(study: Path, row: str) -> dict:
    return json.loads(Cell("singlecap", row, 0).run(study).manifest.read_text())


def test_the_second_base_has_another_seed_and_size_and_its_own_specialists(study: Path) -> None:
    card, shipped = (json.loads((root / "card.json").read_text()) for root in (study / "second-base", SHIPPED))
    for name in ("seed", "size"):
        assert card["settings"][name] != shipped["settings"][name]
    assert card["stages"]["reference"]["parameters"] < shipped["stages"]["reference"]["parameters"] / 2
    assert set(card["stages"]) == {"reference", "math", "code", "if"}


def test_every_row_is_run_with_the_references_that_its_name_says(study: Path) -> None:
    assert [cell.method for cell in finished_cells(study)] == ROWS
    second = str(study / "second-base" / "reference")
    for row in ("trust", "response-level"):
        own, other = manifest(study, row)["models"], manifest(study, f"{row}-from-student")["models"]
        assert {name: each["source"] for name, each in own["own_references"].items()} == {"code": second, "if": second}
        assert own["reference"] == other["reference"]
        assert own["reference"]["source"].startswith(str(SHIPPED / "reference"))
        assert other["own_references"] == {} and own["teachers"] == other["teachers"]
    for row in ("uniform", "routed"):
        assert manifest(study, row)["models"]["reference"] is None
    recipe = yaml.safe_load(Cell("singlecap", "trust-from-student", 0).run(study).recipe.read_text())
    assert recipe["teachers"]["code"]["reference"]["model"] == "student"
    assert "reference" not in recipe["teachers"]["math"] or recipe["teachers"]["math"]["reference"] is None


def test_each_way_to_measure_has_its_own_calibration_and_diagnosis(study: Path) -> None:
    mu = {
        name: json.loads((study / "calibration" / f"singlecap-displacement{name}" / "calibration.json").read_text())[
            "mu"
        ]
        for name in ("", "-from-student")
    }
    assert mu[""]["math"] == mu["-from-student"]["math"]  # measured from the student in both
    assert mu[""]["code"] != mu["-from-student"]["code"]
    own, common = (
        json.loads(Cell("singlecap", row, 0).run(study).diagnosis.read_text())
        for row in ("trust", "trust-from-student")
    )
    assert [each["teachers"] for each in own["references"]] == [["math"], ["code", "if"]]
    assert [each["teachers"] for each in common["references"]] == [["math", "code", "if"]]


def test_results_have_every_row_and_no_average(study: Path) -> None:
    with (study / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows if row["prompts"]] == ROWS
    assert "parameter-average" not in {row["method"] for row in rows}
    assert {"initial", "teacher-code", "routed-teachers"} <= {row["method"] for row in rows}
    assert (study / "report.html").is_file()


def test_run_again_it_makes_only_what_is_missing(study: Path, tmp_path: Path) -> None:
    again = shutil.copytree(study, tmp_path / "study")
    lost = Cell("singlecap", "uniform", 0)
    shutil.rmtree(lost.run(again).path)
    kept = [Cell("singlecap", "routed", 0).run(again).scores, again / "second-base" / "code" / "model.safetensors"]
    before = [path.stat().st_mtime_ns for path in kept]
    run(again, "--only", "singlecap", "--only", "uniform", "--only", "routed")
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert finished_cells(again)[lost]["overall"] == finished_cells(study)[lost]["overall"]


def test_another_pool_is_not_mixed_in_and_a_wrong_name_is_told(study: Path, tmp_path: Path) -> None:
    words = ["reproduce", "testbed", "--seeds", "1", "--only", "uniform"]
    result = CliRunner().invoke(app, [*words, "--out", str(study)])
    assert result.exit_code == 1 and "--out" in result.output
    result = CliRunner().invoke(app, [*words, "--pool", "two-base", "--out", str(tmp_path / "new")])
    assert result.exit_code == 1 and "two-base" in result.output and "two-bases" in result.output
    assert "likelihood" in run(tmp_path / "new", "--only", "likelihood", code=1)
    assert not (tmp_path / "new").exists()
