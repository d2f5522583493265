"""From training to the report with two seeds, in the folders that the verbs themselves make."""

import csv
import json
from pathlib import Path

import pytest
import small_runs
from command import run

DOMAINS = ("math", "code", "if")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("day")
    for domain in DOMAINS:
        rows = [{"id": f"{domain}{i}", "prompt": f"{i} + 1 =", "answer": i + 1, "domain": domain} for i in range(3)]
        (folder / f"{domain}_sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    evaluation = {"benchmarks": [str(folder / f"{d}_sums.jsonl") for d in DOMAINS], "max_new_tokens": 4}
    training = {"max_steps": 2, "record_allocation_every": 1}
    small_runs.recipe(folder, small_runs.checkpoints(folder), training, evaluation=evaluation, seeds=[0, 1])
    run("train", folder / "recipe.yaml")
    run("evaluate", folder / "recipe.yaml")
    return folder / "run"


def test_scores_of_two_seeds_reach_the_report(output: Path, tmp_path: Path) -> None:
    run("report", output, "--out", tmp_path)
    with (tmp_path / "tables" / "main.csv").open() as file:
        rows = {row[""]: row for row in csv.DictReader(file)}
    assert {"initial student", "routed teachers", "trust"} <= set(rows)
    assert "±" in rows["trust"]["overall"]
    assert "There is no evaluation/scores.json" not in (tmp_path / "report.html").read_text()


def test_what_evaluation_took_is_in_the_cost_of_each_seed_and_survives_a_resume(output: Path, tmp_path: Path) -> None:
    run("report", output, "--out", tmp_path)
    with (tmp_path / "tables" / "cost.csv").open() as file:
        (row,) = [row for row in csv.DictReader(file) if row[""] == "trust"]
    hours = 0.0
    for seed in (0, 1):
        cost = json.loads((output / f"seed-{seed}" / "cost.json").read_text())
        assert cost["evaluation"]["seconds"] > 0 and cost["training"]["steps"] == 2
        assert cost["evaluation"]["device_hours"] == pytest.approx(cost["evaluation"]["seconds"] / 3600)
        hours += cost["training"]["device_hours"] + cost["evaluation"]["device_hours"]
    assert row["device-hours"] == f"{hours:.3g}"
    assert "with evaluation" in (tmp_path / "report.html").read_text()
    before = json.loads((output / "seed-0" / "cost.json").read_text())["evaluation"]
    run("train", output.parent / "recipe.yaml", "training.max_steps=3", "seeds=[0, 1]", "--resume")
    cost = json.loads((output / "seed-0" / "cost.json").read_text())
    assert cost["training"]["steps"] == 3 and cost["evaluation"] == before and cost["calibration"]["seconds"] > 0


def test_a_diagnosis_after_training_adds_its_table_and_keeps_what_training_cost(output: Path, tmp_path: Path) -> None:
    before = {seed: json.loads((output / f"seed-{seed}" / "cost.json").read_text()) for seed in (0, 1)}
    run("diagnose", output.parent / "recipe.yaml", "--rollouts", 4)
    for seed, cost in before.items():
        after = json.loads((output / f"seed-{seed}" / "cost.json").read_text())
        assert {**after, "calibration": None} == {**cost, "calibration": None} and after["training"]["steps"] > 0
    run("report", output, "--out", tmp_path)
    with (tmp_path / "tables" / "scores_before.csv").open() as file:
        assert [row["teacher"] for row in csv.DictReader(file)] == list(DOMAINS)
