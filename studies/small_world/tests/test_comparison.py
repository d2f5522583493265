"""The comparison, cut down to seconds, through the code that makes the full one."""

import csv
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from studies.small_world.cells import METHODS, Cell, all_cells, finished_cells
from studies.small_world.comparison import Comparison
from studies.small_world.pools import one_base
from studies.small_world.tables import write_results
from studies.small_world.tests.sizes import SMALL
from trustmopd import TrustMOPDConfig
from trustmopd.quickstart.experiment import Experiment
from trustmopd.quickstart.shipped import SHIPPED
from trustmopd.runs import RunDirectory

RESULTS = Path(__file__).parents[3] / "docs" / "results"
TRUST, UNIFORM = (Cell("multicap", method, 1) for method in ("trust", "uniform"))


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def losses(run: RunDirectory) -> list[float]:
    lines = map(json.loads, run.metrics.read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_the_comparison_has_every_row_of_the_paper_on_both_prompt_sets() -> None:
    cells = all_cells(range(5), METHODS)
    assert len(cells) == 5 * (len(METHODS) + len(METHODS) - 1)  # mixed prompts cannot be routed by label
    assert {cell.method for cell in cells if cell.prompts == "singlecap"} == set(METHODS)
    assert TrustMOPDConfig.gamma == 7  # the rows of gamma are 3, 5 and 9


def test_what_cannot_be_run_is_refused() -> None:
    with pytest.raises(ValueError, match="routed"):
        all_cells([0], METHODS, ["multicap", "routed"])
    with pytest.raises(ValueError, match="trsut.*uniform"):
        all_cells([0], METHODS, ["trsut"])


def test_the_quickstart_is_seed_0_of_the_comparison(finished: Comparison, tmp_path: Path) -> None:
    """It measures mu itself; cells share a calibration."""
    experiment = Experiment(tmp_path, SMALL)
    experiment.train(experiment.recipe("trust", "multicap", {"rule": "trust"}, 0, tmp_path / "trust"))
    ours, cell = losses(RunDirectory(tmp_path / "trust")), Cell("multicap", "trust", 0)
    assert ours == losses(cell.run(finished.out)) and len(ours) == SMALL.steps


def test_a_lost_cell_is_made_again_with_the_same_numbers_and_the_others_stay(
    finished: Comparison, study: Comparison
) -> None:
    """One lost its run, one its scores, and the initial student some responses."""
    shutil.rmtree(TRUST.run(study.out).path)
    UNIFORM.run(study.out).scores.unlink()
    cut = study.out / "evaluation" / "initial" / "testbed_code.jsonl"
    cut.write_text("".join(cut.read_text().splitlines(keepends=True)[:7]))
    student = UNIFORM.run(study.out).checkpoint(SMALL.steps) / "model.safetensors"
    before = student.stat().st_mtime_ns
    study.prepare([TRUST, UNIFORM])
    for cell in (UNIFORM, TRUST):
        study.run(cell)
    assert student.stat().st_mtime_ns == before
    assert finished_cells(study.out) == finished_cells(finished.out)
    assert len(cut.read_text().splitlines()) == SMALL.evaluation_prompts
    assert losses(TRUST.run(study.out)) == losses(TRUST.run(finished.out))


def test_results_of_several_machines_are_averaged_with_a_warning_that_names_them(study: Comparison) -> None:
    change(TRUST.run(study.out).manifest, hardware={"gpus": ["NVIDIA H200"]})
    with pytest.warns(UserWarning, match=rf"NVIDIA H200.*torch {torch.__version__}".replace("+", r"\+")):
        write_results(study.out)
    assert "NVIDIA H200" in (study.out / "report.html").read_text()
    change(study.out / "study.json", device="NVIDIA H200")
    with pytest.warns(UserWarning, match="NVIDIA H200.*--out"):
        study.prepare([])


def test_results_are_means_and_deviations_over_seeds_paired_by_seed(finished: Comparison) -> None:
    out = finished.out
    write_results(out)
    rows = {(row["prompts"], row["method"]): row for row in table(out / "results.csv")}
    scores = json.loads((out / "evaluation" / "scores.json").read_text())
    low, high = scores["initial"]["overall"], scores["routed-teachers"]["overall"]
    recovery = {
        (cell.method, cell.seed): (row["overall"] - low) / (high - low) for cell, row in finished_cells(out).items()
    }
    ahead = [recovery["trust", seed] - recovery["uniform", seed] for seed in (0, 1)]
    row = rows["multicap", "uniform"]
    assert float(row["recovery_mean"]) == pytest.approx((recovery["uniform", 0] + recovery["uniform", 1]) / 2, abs=1e-5)
    assert float(row["trust_ahead_mean"]) == pytest.approx(sum(ahead) / 2, abs=1e-5)
    assert float(row["trust_ahead_sd"]) == pytest.approx(abs(ahead[0] - ahead[1]) / 2**0.5, abs=1e-5)
    assert float(row["max_weight_mean"]) == pytest.approx(1 / 3, abs=1e-5)
    assert float(rows["", "routed-teachers"]["recovery_mean"]) == 1 and ("", "parameter-average") in rows
    listed = {(row["method"], int(row["seed"])): float(row["recovery"]) for row in table(out / "cells.csv")}
    assert listed == pytest.approx(recovery, abs=1e-5)
    for name in ("main", "allocation", "scores_before"):  # scores, weights, and what `diagnose` found
        assert (out / "tables" / f"{name}.md").is_file()
    for ours, published in (("results.csv", "testbed.csv"), ("cells.csv", "testbed-cells.csv")):
        assert list(table(out / ours)[0]) == list(table(RESULTS / published)[0])
    assert {row["method"] for row in table(RESULTS / "testbed.csv") if row["prompts"]} == set(METHODS)


def test_what_a_killed_cell_left_does_not_reach_the_results(study: Comparison) -> None:
    older = {"schema_version": 1, TRUST.row: {"math": 0.5, "overall": 0.5, "recovery": 1.0}}
    for content in (json.dumps(older), '{"schema_ver'):
        TRUST.run(study.out).scores.write_text(content)
        assert TRUST not in finished_cells(study.out) and UNIFORM in finished_cells(study.out)
    graded = study.out / "evaluation" / TRUST.row / "seed-1" / "testbed_math.jsonl"
    graded.write_text(graded.read_text()[:2000])
    write_results(study.out)
    (row,) = [row for row in table(study.out / "results.csv") if row["prompts"] and row["method"] == "trust"]
    assert row["seeds"] == "0" and float(row["math_mean"]) >= 0


def test_cells_run_with_deterministic_kernels(study: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no GPU the numbers are the same either way."""
    seen = []
    monkeypatch.setattr(
        Experiment,
        "evaluate_student",
        lambda *_: seen.append((torch.are_deterministic_algorithms_enabled(), os.environ["CUBLAS_WORKSPACE_CONFIG"])),
    )
    study.run(UNIFORM)
    assert seen == [(True, ":4096:8")]
    assert not torch.are_deterministic_algorithms_enabled()


def test_results_of_another_scale_or_world_are_not_mixed_in(finished: Comparison, tmp_path: Path) -> None:
    """The other world is whole, with a card that fits it: only its specialist for code is another."""
    other = shutil.copytree(SHIPPED, tmp_path / "world")
    shutil.rmtree(other / "code")
    shutil.copytree(other / "math", other / "code")
    card = json.loads((other / "card.json").read_text())
    card["stages"]["code"]["sha256"] = card["stages"]["math"]["sha256"]
    (other / "card.json").write_text(json.dumps(card))
    with pytest.raises(ValueError, match=r"world = .*--out"):
        replace(finished, pool=one_base(other)).prepare([])
    with pytest.raises(ValueError, match=r"scale = .*--out"):
        replace(finished, scale=replace(SMALL, steps=4)).prepare([])
