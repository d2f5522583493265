"""A calibration as a file: what it holds, what it depends on, and that a run it was not made for refuses it."""

import copy
import json
import math
from dataclasses import FrozenInstanceError, replace

import pytest
import tiny
import torch

from trustmopd.method import ScoreTotals
from trustmopd.training.calibration import Calibration
from trustmopd.training.run.resume_policy import SAMPLING

DEPENDS_ON = {
    "teachers": {"math": "ab12", "code": "cd34"},
    "reference": "ef56",
    "student": "ef56",
    "score": "displacement",
    "num_candidates": 128,
    "temperature": 0.6,
    "top_k": None,
}
CALIBRATION = Calibration(
    mu={"math": 4.080123456789012, "code": 6.33},
    depends_on=DEPENDS_ON,
    spread={"math": 1.5, "code": 0.25},
    tokens=4096,
    batches=8,
    global_batch_size=64,
)


def test_a_saved_calibration_loads_unchanged(tmp_path):
    path = CALIBRATION.save(tmp_path / "new" / "calibration.json")
    assert Calibration.load(path) == CALIBRATION
    assert json.loads(path.read_text(encoding="utf-8"))["schema_version"] == 1
    assert [file.name for file in path.parent.iterdir()] == ["calibration.json"]


def test_a_calibration_is_frozen():
    with pytest.raises(FrozenInstanceError):
        CALIBRATION.mu = {}


def test_mu_comes_in_the_order_of_the_asked_teachers():
    assert CALIBRATION.mu_of(["code", "math"]).tolist() == pytest.approx([6.33, 4.080123456789012], rel=1e-7)


def test_a_file_cut_short_anywhere_never_loads_as_another_calibration(tmp_path):
    named = replace(CALIBRATION, mu={"mathé": 1.25}, spread={"mathé": 0.5})
    whole = named.save(tmp_path / "whole.json").read_bytes()
    cut = tmp_path / "cut.json"
    for length in range(len(whole.rstrip())):
        cut.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut\.json"):
            Calibration.load(cut)
    cut.write_bytes(whole.rstrip())  # all but the final line break
    assert Calibration.load(cut) == named


def rewritten(path, **changes):
    """The stored calibration with some entries changed, or removed where the change is None."""
    payload = {**json.loads(CALIBRATION.save(path).read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps({key: value for key, value in payload.items() if value is not None}), encoding="utf-8")
    return path


@pytest.mark.parametrize("key", ["mu", "depends_on", "spread", "tokens", "batches", "global_batch_size"])
def test_a_file_without_one_of_its_entries_is_refused_by_the_entrys_name(tmp_path, key):
    with pytest.raises(ValueError, match=rf"calibration\.json has no {key}\."):
        Calibration.load(rewritten(tmp_path / "calibration.json", **{key: None}))


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_a_file_of_another_schema_version_is_refused(tmp_path, version):
    with pytest.raises(ValueError, match=rf"schema_version {version!r}"):
        Calibration.load(rewritten(tmp_path / "calibration.json", schema_version=version))


def test_json_that_is_no_calibration_at_all_is_refused(tmp_path):
    (tmp_path / "list.json").write_text("[1, 2]", encoding="utf-8")
    with pytest.raises(ValueError, match="schema_version None"):
        Calibration.load(tmp_path / "list.json")
    with pytest.raises(FileNotFoundError, match=r"absent\.json"):
        Calibration.load(tmp_path / "absent.json")


def test_a_teacher_with_mu_zero_is_named_with_what_to_do():
    with pytest.raises(ValueError, match=r"'code'.* 0\b.*4096"):
        replace(CALIBRATION, mu={"math": 4.0, "code": 0.0})


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_a_mu_that_is_no_positive_number_is_refused_in_memory_and_from_a_file(tmp_path, wrong):
    with pytest.raises(ValueError, match=f"'code'.* {wrong}"):
        replace(CALIBRATION, mu={"math": 4.0, "code": wrong})
    with pytest.raises(ValueError, match=rf"calibration\.json has mu\.code = {wrong}"):
        Calibration.load(rewritten(tmp_path / "calibration.json", mu={"math": 4.0, "code": wrong}))


def test_a_calibration_measured_on_no_token_is_refused():
    mu = ScoreTotals(1).mean.item()
    with pytest.raises(ValueError, match="'math'.* nan"):
        replace(CALIBRATION, mu={"math": mu}, tokens=0)


def test_a_calibration_accepts_the_run_it_was_made_for_also_after_a_round_trip(tmp_path):
    CALIBRATION.check(dict(reversed(DEPENDS_ON.items())))
    Calibration.load(CALIBRATION.save(tmp_path / "calibration.json")).check(DEPENDS_ON)


@pytest.mark.parametrize(
    ("change", "field", "made", "found"),
    [
        ({"num_candidates": 64}, "num_candidates", "128", "64"),
        ({"temperature": 1.0}, "temperature", "0.6", "1.0"),
        ({"top_k": 20}, "top_k", "None", "20"),
        ({"score": "likelihood"}, "score", "'displacement'", "'likelihood'"),
        ({"reference": None}, "reference", "'ef56'", "None"),
        ({"teachers": {"math": "ab12", "code": "other"}}, "teachers.code", "'cd34'", "'other'"),
        ({"teachers": {"math": "ab12", "coding": "cd34"}}, "teachers.coding", "None", "'cd34'"),
        ({"teachers": {"math": "ab12"}}, "teachers.code", "'cd34'", "None"),
        ({"teachers": {"math": "ab12", "code": "cd34", "if": "99"}}, "teachers.if", "None", "'99'"),
        ({"prompts": "77"}, "prompts", "None", "'77'"),
    ],
)
def test_another_run_is_refused_by_the_field_that_differs_and_both_its_values(change, field, made, found):
    with pytest.raises(ValueError, match=rf"{field} = {made}, .*{found}"):
        CALIBRATION.check({**DEPENDS_ON, **change})


# ---- In a run


@pytest.fixture(scope="module")
def calibration_file(make, tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrated")
    make(folder, calibration_batches=1).calibrate()
    return folder / "calibration.json"


def refused(build, path, *facts, **parts):
    with pytest.raises(ValueError) as refusal:
        build(calibration_path=str(path), **parts)
    assert [fact for fact in facts if fact not in str(refusal.value)] == [], refusal.value


def test_a_calibration_depends_on_models_prompts_score_and_sampling(build, calibration_file):
    depends_on = Calibration.load(calibration_file).depends_on
    models = {"teachers", "reference", "student", "tokenizer", "prompts", "score"}
    assert depends_on.keys() >= models | {*SAMPLING}
    refused(build, calibration_file, "temperature = 0.6", "0.7", "Calibrate again", temperature=0.7)
    refused(build, calibration_file, "score = 'displacement'", "'likelihood'", "Calibrate again", score="likelihood")


@pytest.mark.parametrize("field", ["teachers.code", "teachers.law", "teachers.if", "reference", "student", "prompts"])
def test_a_calibration_of_other_models_or_prompts_is_refused(build, calibration_file, family, field):
    other, pool = tiny.specialist(family.base, 9), family.specialists
    parts = {
        "teachers.code": {"teachers": {**pool, "code": other}},
        "teachers.law": {"teachers": {**pool, "law": other}},
        "teachers.if": {"teachers": {name: pool[name] for name in ("math", "code")}},
        "reference": {"reference": other},
        "student": {"model": copy.deepcopy(other)},
        "prompts": {"prompts": family.prompts.select(range(1, 24))},
    }
    refused(build, calibration_file, f"made with {field} = ", "Calibrate again", **parts[field])


def nearly(model):
    """The same policy but for rounding."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.model.norm.weight *= 1 + 1e-6
    return copied


@pytest.mark.parametrize("verb", ["calibrate", "train"])
def test_a_teacher_that_is_the_reference_but_for_rounding_is_named_with_both_figures(build, family, verb):
    pool = {**family.specialists, "code": nearly(family.base)}
    trainer = build(teachers=pool)
    with pytest.raises(ValueError) as refusal:
        getattr(trainer, verb)()
    found = build(teachers=pool, min_relative_mu=0.0).calibrate()
    assert found.mu["code"] < 1e-3 * min(found.mu["math"], found.mu["if"])
    others = (found.mu["math"] + found.mu["if"]) / 2
    for figure in ("'code'", f"{found.mu['code']:.3g}", f"{others:.3g}", "min_relative_mu"):
        assert figure in str(refusal.value)
    assert trainer.calibration is None
