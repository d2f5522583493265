"""Runs are averaged only where they are seeds of one experiment, and told apart by whatever makes them two."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import recorded
from hypothesis import given
from hypothesis import strategies as st

from trustmopd import TrustMOPDConfig
from trustmopd.report.readers.run import find_runs
from trustmopd.report.readers.token_records import group_name
from trustmopd.report.statistics.comparison import Comparison, compare, unambiguous
from trustmopd.report.statistics.summary import summarise_run
from trustmopd.training.run import resume_policy as lessons


def compared(folder: Path) -> Comparison:
    return compare(summarise_run(run) for run in find_runs([folder]))


def methods(folder: Path) -> list[list[str]]:
    return [list(setting.methods) for setting in compared(folder).settings]


def two_runs(folder: Path, one: dict[str, Any], other: dict[str, Any], **both: Any) -> None:
    for place, config in enumerate((one, other)):
        recorded.make_run(folder / str(place), steps=1, rollouts=1, seed=place, **{**both, **config})


@pytest.mark.unit
def test_every_field_that_is_classified_is_a_field() -> None:
    known = {field.name for field in dataclasses.fields(TrustMOPDConfig)}
    assert {*lessons.LESSONS, *lessons.STORED, *lessons.TOLD} <= known
    assert {*lessons._OF_TRANSFORMERS, *lessons._HOUSEKEEPING} <= known


def test_a_field_that_trl_or_this_package_adds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Later(TrustMOPDConfig):
        vllm_added: int = 0

    monkeypatch.setattr(lessons, "TrustMOPDConfig", Later)
    assert "vllm_added" in lessons.experiment_fields(has_dropout=False)


def test_dropout_makes_another_experiment_only_of_a_student_that_has_it() -> None:
    assert "disable_dropout" in lessons.experiment_fields(has_dropout=True)
    assert "disable_dropout" not in lessons.experiment_fields(has_dropout=False)


@pytest.mark.parametrize(
    ("field", "values", "both", "expected"),
    [
        *(
            (name, (1, 2), {}, ["trust", f"trust, {name} 2"])
            for name in ("dataloader_drop_last", "learning_rate", "top_k")
        ),
        ("vllm_structured_outputs_regex", ("a", "b"), {}, ["trust", "trust, vllm_structured_outputs_regex b"]),
        ("calibration_batches", (8, 2), {}, ["trust", "trust, calibration_batches 2"]),
        ("calibration_batches", (8, 2), {"rule": "uniform"}, ["uniform"]),  # which does not use it
        ("domain_column", ("a", "b"), {"rule": "routed"}, ["routed", "routed, domain_column b"]),
        ("domain_column", ("a", "b"), {}, ["trust"]),
        ("gamma", (3.0, 3.0000001), {}, ["γ = 3", "γ = 3.0000001"]),
        (
            "score",
            ("displacement", "likelihood"),
            {"allocation": "mine.rule"},
            ["mine.rule", "mine.rule, score likelihood"],
        ),
        *((name, (1, 2), {}, ["trust"]) for name in ("save_steps", "logging_steps", "per_device_train_batch_size")),
        ("vllm_server_port", (1, 2), {}, ["trust"]),
        ("teacher_placement", ("resident", "ray"), {}, ["trust", "trust, placement ray"]),
    ],
)
def test_two_values_of_a_field_are_two_experiments_if_they_decide_what_is_learnt(
    tmp_path: Path, field: str, values: tuple, both: dict[str, Any], expected: list[str]
) -> None:
    two_runs(tmp_path, *({field: value} for value in values), **both)
    assert methods(tmp_path) == [expected]


def test_a_manifest_that_does_not_list_what_counts_is_noted(tmp_path: Path) -> None:
    two_runs(tmp_path, {"learning_rate": 1e-5}, {"learning_rate": 1e-6})
    for file in tmp_path.glob("*/manifest.json"):
        manifest = json.loads(file.read_text())
        del manifest["experiment"]
        file.write_text(json.dumps(manifest))
    found = compared(tmp_path)
    assert [list(setting.methods) for setting in found.settings] == [["trust"]]
    assert all(any("manifest.json" in each.what for each in run.missing) for run in found.runs)


def test_another_reference_and_another_part_of_the_student_are_other_experiments(tmp_path: Path) -> None:
    for place in range(6):
        recorded.make_run(tmp_path / str(place), steps=1, rollouts=1, seed=place)
        recorded.change(tmp_path / str(place), "models.reference", {"fingerprint": "aaaa1111ffff"})
        recorded.change(tmp_path / str(place), "models.student.trainable_parameters", 1000)
    recorded.change(tmp_path / "3", "models.reference", {"fingerprint": "bbbb2222ffff"})
    recorded.change(tmp_path / "4", "models.student.trainable_parameters", 64)
    recorded.change(tmp_path / "5", "models.reference", None)  # of a rule that asks none: any
    assert methods(tmp_path) == [["trust", "trust, reference bbbb2222", "trust, trainable_parameters 64"]]
    assert len(compared(tmp_path).settings[0].methods["trust"]) == 4


def test_teachers_with_their_own_references_are_another_experiment_than_with_a_common_one(tmp_path: Path) -> None:
    for place in range(4):
        recorded.make_run(tmp_path / str(place), steps=1, rollouts=1, seed=place)
        recorded.change(tmp_path / str(place), "models.reference", {"fingerprint": "aaaa1111ffff"})
    manifest = tmp_path / "3" / "manifest.json"
    written = json.loads(manifest.read_text())
    assert written["models"]["own_references"] == {}  # as every run writes it
    for mark, method in (
        ("bbbb2222ffff", "trust, reference aaaa1111 of math, if; bbbb2222 of code"),
        ("aaaa1111ffff", ""),
    ):
        written["models"]["own_references"] = {"code": {"source": "models/second", "fingerprint": mark}}
        manifest.write_text(json.dumps(written))
        assert methods(tmp_path) == [["trust", method] if method else ["trust"]]


def test_two_adapters_of_one_size_are_two_experiments(tmp_path: Path) -> None:
    two_runs(tmp_path, {}, {})
    for place, alpha in enumerate((16, 32)):
        file = tmp_path / str(place) / "manifest.json"
        manifest = json.loads(file.read_text())
        manifest["models"]["student"]["adapter"] = {"lora_alpha": alpha}
        file.write_text(json.dumps(manifest))
    assert methods(tmp_path) == [["trust", "trust, adapter {'lora_alpha': 32}"]]


def test_an_unfinished_run_is_no_further_seed(tmp_path: Path) -> None:
    for seed, steps in enumerate((4, 4, 1, 1, 2)):
        recorded.make_run(tmp_path / str(seed), steps=steps, max_steps=4, rollouts=1, seed=seed)
    (setting,) = compared(tmp_path).settings
    assert {name: list(seeds) for name, seeds in setting.methods.items()} == {
        "trust": [0, 1],
        "trust, step 1 of 4": [2, 3],
        "trust, step 2 of 4": [4],
    }


def test_the_order_of_the_runs_names_nothing_and_trust_keeps_its_name(tmp_path: Path) -> None:
    for rule, rate in (("uniform", 1e-6), ("trust", 1e-5)):
        recorded.make_run(tmp_path / rule, rule=rule, steps=1, rollouts=1, learning_rate=rate)
    summaries = [summarise_run(run) for run in find_runs([tmp_path])]
    for runs in (summaries, summaries[::-1]):
        assert {run.method for run in unambiguous(runs)} == {"trust", "uniform, learning_rate 1e-06"}
    two_runs(tmp_path / "two", {"learning_rate": 1e-5}, {"learning_rate": 1e-6})
    summaries = [summarise_run(run) for run in find_runs([tmp_path / "two"])]
    named = [{run.seed: run.method for run in unambiguous(runs)} for runs in (summaries, summaries[::-1])]
    assert named[0] == named[1]


@pytest.mark.parametrize("what", ["student", "prompts"])
def test_fingerprints_that_begin_alike_are_unambiguous(tmp_path: Path, what: str) -> None:
    for place, mark in enumerate(("aaaa1xyz", "aaaa2xyz")):
        run = recorded.make_run(tmp_path / str(place), steps=1, rollouts=1)
        (run / "recipe.yaml").write_text("name: trust\nprompts: {path: train.jsonl}\n")
        recorded.change(run, f"{'models.student' if what == 'student' else 'prompts'}.fingerprint", mark)
    found = compared(tmp_path)
    name = "base" if what == "student" else "train"
    assert [getattr(setting, what) for setting in found.settings] == [f"{name} aaaa1x", f"{name} aaaa2x"]
    assert not found.warnings


def test_teachers_whose_fingerprints_begin_alike_are_other_teachers(tmp_path: Path) -> None:
    for place, mark in enumerate(("aaaa1xyz", "aaaa2xyz")):
        run = recorded.make_run(tmp_path / str(place), steps=1, rollouts=1, seed=place)
        recorded.change(run, "models.teachers.if.fingerprint", mark)
    assert methods(tmp_path) == [["trust", "trust, teachers math + code + if aaaa2x"]]


@pytest.mark.unit
@given(*[st.lists(st.sampled_from(["a", "b", "a+b", "'a'", '"a"', "+", "", "unlabelled", "a'+'b"]), unique=True)] * 2)
def test_two_sets_of_needs_never_share_a_name(one: list[str], other: list[str]) -> None:
    assert (group_name(one) == group_name(other)) == (one == other)


def test_a_label_that_holds_a_plus_is_no_mixture(tmp_path: Path) -> None:
    run = recorded.make_run(tmp_path, steps=2, groups=[["math"], ["if"], ["math", "if"], ["math+if"], None])
    (found,) = [summarise_run(each) for each in find_runs([run])]
    needs = {group: entry["needs"] for group, entry in found.allocation.items()}
    assert needs == {"math": ["math"], "if": ["if"], "'math+if'": [], "math+if": ["math", "if"], "unlabelled": []}
