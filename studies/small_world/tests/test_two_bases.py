"""The comparison with teachers of two bases, cut down to seconds."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from transformers import LlamaForCausalLM

from studies.small_world import build_world as building
from studies.small_world import pools
from studies.small_world.cells import OF_TWO_BASES, Cell
from studies.small_world.comparison import Comparison
from studies.small_world.models import make_tokenizer
from studies.small_world.tests.sizes import CUT_DOWN, ROLLOUTS, SMALL
from trustmopd.quickstart import DOMAINS
from trustmopd.quickstart.shipped import SHIPPED

CELLS = [Cell("singlecap", row, 0) for row in ("trust", "trust-from-student")]


def moved_a_little(domain: str, reference: Path, out: Path, *_: Any, **__: Any) -> dict[str, Any]:
    """In place of GRPO, which needs a reference that is sometimes right."""
    tiny.save(
        tiny.specialist(LlamaForCausalLM.from_pretrained(reference), DOMAINS.index(domain)), out, make_tokenizer()
    )
    return {"steps": 1, "reached_target": False, "rewards": [0.0], "kl": [0.0]}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("two-bases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "SECOND_SUPERVISION", CUT_DOWN["supervision"])
        patch.setattr(building, "build_specialist", moved_a_little)
        patch.setattr(building, "evaluate", lambda *_: {"scores": {}, "understood": {}})
        comparison = Comparison(out, pools.two_bases(SHIPPED, out), SMALL, ROLLOUTS)
    comparison.prepare(CELLS)
    for cell in CELLS:
        comparison.run(cell)
    return comparison


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_the_second_base_has_another_seed_and_size_and_its_own_specialists(study: Comparison) -> None:
    card, shipped = (read(root / "card.json") for root in (study.out / "second-base", SHIPPED))
    for name in ("seed", "size"):
        assert card["settings"][name] != shipped["settings"][name]
    assert card["stages"]["reference"]["parameters"] < shipped["stages"]["reference"]["parameters"] / 2
    assert set(card["stages"]) == {"reference", "math", "code", "if"}
    assert len(study.pool.weights) == 8


def test_every_row_is_run_with_the_references_that_its_name_says(study: Comparison) -> None:
    own, other = (read(cell.run(study.out).manifest)["models"] for cell in CELLS)
    second = str(study.out / "second-base" / "reference")
    assert {name: each["source"] for name, each in own["own_references"].items()} == {"code": second, "if": second}
    assert own["reference"] == other["reference"]
    assert own["reference"]["source"].startswith(str(SHIPPED / "reference"))
    assert other["own_references"] == {} and own["teachers"] == other["teachers"]
    assert {row for row in OF_TWO_BASES if row.endswith("-from-student")} == {
        "trust-from-student",
        "response-level-from-student",
    }


def test_each_way_to_measure_has_its_own_calibration_and_diagnosis(study: Comparison) -> None:
    own, other = (
        read(study.out / "calibration" / f"singlecap-displacement{name}" / "calibration.json")["mu"]
        for name in ("", "-from-student")
    )
    assert own["math"] == other["math"]  # measured from the student in both
    assert own["code"] != other["code"]
    own, common = (read(cell.run(study.out).diagnosis)["references"] for cell in CELLS)
    assert [each["teachers"] for each in own] == [["math"], ["code", "if"]]
    assert [each["teachers"] for each in common] == [["math", "code", "if"]]


def test_models_of_two_sizes_have_no_average(study: Comparison) -> None:
    rows = {path.name for path in (study.out / "evaluation").iterdir()}
    assert "parameter-average" not in rows and {"initial", "teacher-code"} <= rows
