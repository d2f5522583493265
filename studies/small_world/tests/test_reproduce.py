"""The comparison, cut down to seconds, through the code that makes the full one."""

import csv
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from small_world import ONLY, SMALL
from typer.testing import CliRunner

from studies.small_world.cells import Cell, all_cells, finished_cells, parse_seeds
from studies.small_world.reproduce import reproduce, run_cell
from studies.small_world.tables import write_results
from trustmopd import TrustMOPDConfig
from trustmopd.cli import app
from trustmopd.quickstart.experiment import METHODS, Experiment, Scale, World
from trustmopd.quickstart.machine import made_by
from trustmopd.quickstart.shipped import SHIPPED

TRUST, UNIFORM = (Cell("multicap", method, 1) for method in ("trust", "uniform"))


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def losses(cell: Cell, out: Path) -> list[float]:
    lines = map(json.loads, cell.run(out).metrics.read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_the_comparison_has_every_row_of_the_paper_on_both_prompt_sets() -> None:
    cells = all_cells(range(5))
    assert len(cells) == 5 * (len(METHODS) + len(METHODS) - 1)  # mixed prompts cannot be routed by label
    assert {cell.method for cell in cells if cell.prompts == "singlecap"} == set(METHODS)


def test_lost_cells_alone_are_made_again_with_the_same_numbers_beside_results_of_another_machine(
    finished: Path, study: Path
) -> None:
    """One lost its run and one its scores. They run side by side, in other processes and another order."""
    shutil.rmtree(TRUST.run(study).path)
    UNIFORM.run(study).scores.unlink()
    cut = study / "evaluation" / "teacher-math" / "testbed_code.jsonl"
    cut.write_text("".join(cut.read_text().splitlines(keepends=True)[:7]))
    kept = Cell("multicap", "trust", 0).run(study)
    versions = made_by()["versions"] | {"torch": "2.11.0"}
    change(kept.manifest, versions=versions, hardware={"gpus": ["NVIDIA H200"]})
    student = UNIFORM.run(study).checkpoint(SMALL.steps) / "model.safetensors"
    untouched = {path: path.stat().st_mtime_ns for path in (student, kept.scores, kept.metrics)}
    with pytest.warns(UserWarning, match="NVIDIA H200"):
        reproduce(study, [1, 0], only=ONLY, scale=SMALL, jobs=2)
    assert {path: path.stat().st_mtime_ns for path in untouched} == untouched
    assert finished_cells(study) == finished_cells(finished)
    assert len(cut.read_text().splitlines()) == SMALL.evaluation_prompts
    assert losses(TRUST, study) == losses(TRUST, finished) and len(losses(TRUST, study)) == SMALL.steps
    with pytest.warns(UserWarning) as told:
        write_results(study)
    said = " ".join(str(warning.message) for warning in told)
    for made in ("NVIDIA H200", "torch 2.11.0", made_by()["device"], f"torch {torch.__version__}", kept.path.name):
        assert made in said
    assert "NVIDIA H200" in (study / "report.html").read_text()


def test_results_are_means_and_deviations_over_seeds_paired_by_seed(finished: Path) -> None:
    write_results(finished)
    rows = {(row["prompts"], row["method"]): row for row in table(finished / "results.csv")}
    scores = json.loads((finished / "evaluation" / "scores.json").read_text())
    low, high = scores["initial"]["overall"], scores["routed-teachers"]["overall"]
    recovery = {
        (cell.method, cell.seed): (row["overall"] - low) / (high - low)
        for cell, row in finished_cells(finished).items()
    }
    ahead = [recovery["trust", seed] - recovery["uniform", seed] for seed in (0, 1)]
    row = rows["multicap", "uniform"]
    assert float(row["recovery_mean"]) == pytest.approx((recovery["uniform", 0] + recovery["uniform", 1]) / 2, abs=1e-5)
    assert float(row["trust_ahead_mean"]) == pytest.approx(sum(ahead) / 2, abs=1e-5)
    assert float(row["trust_ahead_sd"]) == pytest.approx(abs(ahead[0] - ahead[1]) / 2**0.5, abs=1e-5)
    assert float(row["max_weight_mean"]) == pytest.approx(1 / 3, abs=1e-5)
    assert float(rows["", "routed-teachers"]["recovery_mean"]) == 1
    listed = {(row["method"], int(row["seed"])): float(row["recovery"]) for row in table(finished / "cells.csv")}
    assert listed == pytest.approx(recovery, abs=1e-5)
    for name in ("main", "allocation", "scores_before"):  # scores, weights, and what `diagnose` found
        assert (finished / "tables" / f"{name}.md").is_file()


def test_files_of_results_have_the_columns_of_the_published_ones(finished: Path) -> None:
    write_results(finished)
    docs = Path(__file__).parents[3] / "docs" / "results"
    for ours, published in (("results.csv", "testbed.csv"), ("cells.csv", "testbed-cells.csv")):
        assert list(table(finished / ours)[0]) == list(table(docs / published)[0])
    methods = {row["method"] for row in table(docs / "testbed.csv") if row["prompts"]}
    assert methods == set(METHODS)


def test_trust_gives_the_matched_specialists_more_than_uniform_does(finished: Path) -> None:
    write_results(finished)
    mass = {row[""]: float(row["relevant mass"].split(" ")[0]) for row in rows_of(finished / "tables/allocation.csv")}
    for name, share in mass.items():
        method, needs = name.split(", ")
        if method == "uniform":
            assert share == pytest.approx(len(needs.split("+")) / 3, abs=0.01)
            assert mass[f"trust, {needs}"] > share


def rows_of(path: Path) -> list[dict[str, str]]:
    """With the first column under the empty name."""
    found = table(path)
    first = next(iter(found[0]))
    return [{"": row[first], **row} for row in found]


def test_what_a_killed_cell_left_does_not_reach_the_results(study: Path) -> None:
    TRUST.run(study).scores.unlink()
    graded = study / "evaluation" / TRUST.row / "seed-1" / "testbed_math.jsonl"
    graded.write_text(graded.read_text()[:2000])
    write_results(study)
    (row,) = [row for row in table(study / "results.csv") if (row["prompts"], row["method"]) == ("multicap", "trust")]
    assert row["seeds"] == "0" and float(row["math_mean"]) >= 0


def test_a_damaged_or_older_file_of_scores_leaves_its_cell_unfinished(study: Path) -> None:
    older = {"schema_version": 1, TRUST.row: {"math": 0.5, "overall": 0.5, "recovery": 1.0}}
    for content in (json.dumps(older), '{"schema_ver'):
        TRUST.run(study).scores.write_text(content)
        assert TRUST not in finished_cells(study) and UNIFORM in finished_cells(study)


def test_cells_run_with_deterministic_kernels(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the workers' own function; where there is no GPU the numbers are the same either way."""
    seen = []
    monkeypatch.setattr(
        Experiment,
        "evaluate_student",
        lambda *_: seen.append((torch.are_deterministic_algorithms_enabled(), os.environ["CUBLAS_WORKSPACE_CONFIG"])),
    )
    run_cell(UNIFORM, Experiment(World(), SMALL, study))
    assert seen == [(True, ":4096:8")]
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.slow
def test_ctrl_c_keeps_finished_cells_and_says_how_to_go_on(study: Path, tmp_path: Path) -> None:
    script = f"""
if __name__ == "__main__":
    from trustmopd.cli import app
    from trustmopd.quickstart import experiment
    from studies.small_world import reproduce

    small = experiment.Scale(**{asdict(SMALL)!r})
    reproduce.Scale = lambda: small
    only = ["--only", "multicap", "--only", "uniform"]
    app(["reproduce", "testbed", "--seeds", "30", *only, "--out", {str(study)!r}])
"""
    (tmp_path / "script.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # ignored by what runs in the background
    )
    before, deadline = len(finished_cells(study)), time.monotonic() + 200
    while len(finished_cells(study)) == before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the parent and its workers
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "trustmopd reproduce testbed --seeds 30 --jobs 1" in stdout and "--only multicap --only uniform" in stdout
    assert "Traceback" not in stderr and "leaked" not in stderr
    assert before < len(finished_cells(study)) < 30


def test_a_worker_killed_from_outside_is_one_message_and_finished_cells_stay(study: Path) -> None:
    before = len(finished_cells(study))

    def kill_a_worker() -> None:
        while len(finished_cells(study)) == before:
            time.sleep(0.05)
        multiprocessing.active_children()[0].kill()

    killer = Thread(target=kill_a_worker, daemon=True)
    killer.start()
    with pytest.raises(ChildProcessError, match="--jobs"):
        reproduce(study, range(20), only=["multicap", "uniform"], scale=SMALL)
    killer.join()
    assert before < len(finished_cells(study)) < 20


def test_results_of_another_scale_or_world_are_not_mixed_in(finished: Path, tmp_path: Path) -> None:
    """The other world is whole, with a card that fits it: only its specialist for code is another."""
    other = shutil.copytree(SHIPPED, tmp_path / "world")
    shutil.rmtree(other / "code")
    shutil.copytree(other / "math", other / "code")
    card = json.loads((other / "card.json").read_text())
    card["stages"]["code"]["sha256"] = card["stages"]["math"]["sha256"]
    (other / "card.json").write_text(json.dumps(card))
    cells = finished_cells(finished)
    with pytest.raises(ValueError, match=r"world = .*--out"):
        reproduce(finished, [0, 1, 2], only=ONLY, world=World(other), scale=SMALL)
    with pytest.raises(ValueError, match=r"scale = .*--out"):
        reproduce(finished, [0], scale=Scale(steps=4))
    assert finished_cells(finished) == cells


def test_gamma_7_is_another_name_of_trust() -> None:
    assert TrustMOPDConfig.gamma == 7
    assert all_cells([0], ["gamma-7"]) == all_cells([0], ["trust"])
    assert all_cells([0], ["trust", "gamma-7", "gamma-9"]) == all_cells([0], ["trust", "gamma-9"])


@pytest.mark.parametrize(("text", "seeds"), [("5", [0, 1, 2, 3, 4]), ("0,3,4", [0, 3, 4]), ("1", [0]), ("7,", [7])])
def test_seeds_are_a_number_or_a_list(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1,1", "1,-2", "1.5", "1234", "99999999999", "0,4294967296"])
def test_a_wrong_seed_list_is_told_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="--seeds"):
        parse_seeds(text)


def command(*arguments: object) -> str:
    """What `trustmopd reproduce testbed` says when it refuses."""
    result = CliRunner().invoke(app, ["reproduce", "testbed", *map(str, arguments)])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    return result.output


def test_what_cannot_be_run_is_told_at_once(tmp_path: Path) -> None:
    out = ["--out", tmp_path / "out"]
    assert "routed" in command("--only", "multicap", "--only", "routed", *out)
    said = command("--only", "trsut", *out)
    assert "trsut" in said and "uniform" in said
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in command("--out", tmp_path / "file" / "below")
    assert not (tmp_path / "out").exists()


def test_an_altered_checkpoint_is_named_with_its_digest(tmp_path: Path) -> None:
    world = shutil.copytree(SHIPPED, tmp_path / "world")
    (world / "code" / "model.safetensors").write_bytes(b"other")
    expected = json.loads((world / "card.json").read_text())["stages"]["code"]["sha256"]["model.safetensors"]
    said = command("--world", world, "--out", tmp_path / "out")
    assert str(world / "code" / "model.safetensors") in said and expected in said


@pytest.mark.parametrize(
    "card",
    ['{"schema_version": 1}', '{"schema_version": 1, "stages": {"reference": 3}}', "[]", '{"schema_ver', None],
    ids=["no stages", "no digests", "no object", "half", "no card"],
)
def test_a_world_with_a_wrong_card_is_told_at_once(tmp_path: Path, card: str | None) -> None:
    (tmp_path / "world").mkdir()
    if card is not None:
        (tmp_path / "world" / "card.json").write_text(card)
    said = command("--world", tmp_path / "world", "--out", tmp_path / "out")
    assert "card.json" in said and "trustmopd testbed build" in said
    assert not (tmp_path / "out").exists()
