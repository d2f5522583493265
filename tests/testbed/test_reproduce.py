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

import pytest
import torch
import transformers
import trl
from small_world import SMALL
from typer.testing import CliRunner

from trustmopd import TrustMOPDConfig
from trustmopd.cli import app
from trustmopd.testbed import reproduce as reproducing
from trustmopd.testbed.cells import Cell, load_cells
from trustmopd.testbed.checkpoints import SHIPPED
from trustmopd.testbed.experiment import METHODS, Scale, World, run_cell
from trustmopd.testbed.machine import made_by
from trustmopd.testbed.reproduce import all_cells, parse_seeds, prepare, reproduce
from trustmopd.testbed.results import summarise, write_results


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reproduce")
    reproduce(out, [0, 1], only=["multicap", "trust", "uniform"], scale=SMALL)
    return out


def test_the_comparison_has_every_row_of_the_paper_on_both_prompt_sets() -> None:
    cells = all_cells(range(5))
    assert len(cells) == 5 * (len(METHODS) + len(METHODS) - 1)  # mixed prompts cannot be routed by label
    assert {cell.method for cell in cells if cell.prompts == "singlecap"} == set(METHODS)


def test_finished_cells_are_not_run_again_and_a_lost_one_is(finished: Path) -> None:
    cells = {path: path.stat().st_mtime_ns for path in (finished / "cells").rglob("seed-*.json")}
    assert len(cells) == 4
    lost = finished / "cells" / "multicap" / "trust" / "seed-1.json"
    before = json.loads(lost.read_text())
    lost.unlink()
    reproduce(finished, [0, 1], only=["multicap", "trust", "uniform"], scale=SMALL)
    assert {path for path in cells if path.stat().st_mtime_ns != cells[path]} == {lost}
    after = json.loads(lost.read_text())
    for cell in (before, after):
        cell.pop("seconds")
    assert before == after  # the same numbers from the same seed


def test_trust_gives_the_matched_specialists_more_than_uniform_does(finished: Path) -> None:
    _, rows = summarise(finished)
    by_method = {row["method"]: row["allocation"] for row in rows}
    for needs, entry in by_method["uniform"].items():
        assert entry["relevant_mass"] == pytest.approx(len(needs.split("+")) / 3, abs=1e-5)
        assert by_method["trust"][needs]["relevant_mass"] > entry["relevant_mass"]


def test_tables_are_means_and_deviations_over_seeds_paired_by_seed(finished: Path) -> None:
    write_results(finished)
    with (finished / "results.csv").open() as file:
        rows = {(row["prompts"], row["method"]): row for row in csv.DictReader(file)}
    references = json.loads((finished / "references.json").read_text())["scores"]
    low, high = references["initial"]["overall"], references["routed-teachers"]["overall"]
    recovery = {
        (cell["method"], cell["seed"]): (cell["scores"]["overall"] - low) / (high - low)
        for cell in load_cells(finished)
    }
    ahead = [recovery["trust", seed] - recovery["uniform", seed] for seed in (0, 1)]
    row = rows["multicap", "uniform"]
    assert float(row["recovery_mean"]) == pytest.approx((recovery["uniform", 0] + recovery["uniform", 1]) / 2, abs=1e-5)
    assert float(row["trust_ahead_mean"]) == pytest.approx(sum(ahead) / 2, abs=1e-5)
    assert float(row["trust_ahead_sd"]) == pytest.approx(abs(ahead[0] - ahead[1]) / 2**0.5, abs=1e-5)
    assert float(rows["", "routed-teachers"]["recovery_mean"]) == 1
    with (finished / "cells.csv").open() as file:
        listed = {(row["method"], int(row["seed"])): float(row["recovery"]) for row in csv.DictReader(file)}
    assert listed == pytest.approx(recovery, abs=1e-5)
    text = (finished / "results.md").read_text()
    assert "## MultiCap" in text and "`diagnose` says" in text and "relevant mass" in text
    assert (finished / "figures" / "recovery.png").stat().st_size > 5000


def test_the_same_seed_gives_the_same_numbers_again(finished: Path, tmp_path: Path) -> None:
    """Also when cells run side by side, in other processes and another order."""
    reproduce(tmp_path, [1, 0], only=["multicap", "trust"], scale=SMALL, jobs=2)
    first = {cell["seed"]: cell for cell in load_cells(finished) if cell["method"] == "trust"}
    again = {cell["seed"]: cell for cell in load_cells(tmp_path)}
    for seed in (0, 1):
        for name in ("scores", "loss", "allocation", "max_weight"):
            assert again[seed][name] == first[seed][name]


@pytest.mark.slow
def test_ctrl_c_keeps_finished_cells_and_says_how_to_go_on(tmp_path: Path) -> None:
    script = f"""
if __name__ == "__main__":
    from trustmopd.cli import app
    from trustmopd.testbed import experiment, reproduce

    small = experiment.Scale(**{asdict(SMALL)!r})
    reproduce.Scale = lambda: small
    only = ["--only", "multicap", "--only", "uniform"]
    app(["reproduce", "testbed", "--seeds", "30", *only, "--out", {str(tmp_path / "out")!r}])
"""
    (tmp_path / "script.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(tmp_path / "script.py")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # ignored by what runs in the background
    )
    cells = tmp_path / "out" / "cells"
    deadline = time.monotonic() + 200
    while not list(cells.rglob("seed-*.json")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the parent and its workers
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "finished cells are kept. Continue with: trustmopd reproduce testbed --seeds 30 --jobs 1" in stdout
    assert "--only multicap --only uniform" in stdout
    assert "Traceback" not in stderr and "leaked" not in stderr
    kept = load_cells(tmp_path / "out")
    assert 0 < len(kept) < 30 and all("scores" in cell for cell in kept)


def test_a_worker_killed_from_outside_is_one_message_and_finished_cells_stay(tmp_path: Path) -> None:
    def kill_a_worker() -> None:
        while not list((tmp_path / "cells").rglob("seed-*.json")):
            time.sleep(0.05)
        multiprocessing.active_children()[0].kill()

    killer = Thread(target=kill_a_worker, daemon=True)
    killer.start()
    with pytest.raises(OSError, match="a worker was ended from outside.*Finished cells are kept.*fewer --jobs"):
        reproduce(tmp_path, range(20), only=["multicap", "uniform"], scale=SMALL)
    killer.join()
    kept = load_cells(tmp_path)
    assert 0 < len(kept) < 20 and all("scores" in cell for cell in kept)


def test_a_cell_that_lacks_a_field_is_named_with_the_way_out(tmp_path: Path) -> None:
    damaged = tmp_path / "cells" / "multicap" / "trust" / "seed-0.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text('{"schema_version": 1, "seed": 0}')
    said = r"seed-0.json lacks prompts, method, scores, allocation, max_weight, seconds. Remove the file"
    with pytest.raises(ValueError, match=said):
        load_cells(tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("seconds", None, r"lacks seconds\."),
        ("seconds", "12", r"has seconds = '12': input should be a valid number\."),
        ("allocation", None, r"lacks allocation\."),
        ("allocation", [], r"has allocation = \[\]: input should be a valid dictionary\."),
        ("allocation.math.weights", None, r"lacks allocation.math.weights\."),
        ("allocation.math.weights.if", float("inf"), r"has allocation.math.weights.if = inf: .* finite number\."),
        ("scores", {}, r"has scores = {}: it lacks math, code, if, overall\."),
        ("scores.if", None, r"it lacks if\."),
        ("scores.math", float("nan"), r"has scores.math = nan: input should be a finite number\."),
        ("max_weight", True, r"has max_weight = True: input should be a valid number\."),
        ("method", "trsut", r"has method = 'trsut': it is none of trust, uniform, random,"),
        ("prompts", "both", r"has prompts = 'both': it is none of singlecap, multicap\."),
        ("seed", -1, r"has seed = -1: input should be greater than or equal to 0\."),
        ("seed", 7, r"is that of multicap/trust/seed-7\."),
    ],
)
def test_a_damaged_cell_is_named_whatever_is_wrong_with_it(
    finished: Path, tmp_path: Path, place: str, value: object, said: str
) -> None:
    out = shutil.copytree(finished, tmp_path / "out", ignore=shutil.ignore_patterns("runs", "parameter-average"))
    damaged = out / "cells" / "multicap" / "trust" / "seed-0.json"
    cell = json.loads(damaged.read_text())
    *parents, field = place.split(".")
    holder = cell
    for parent in parents:
        holder = holder[parent]
    if value is None:
        del holder[field]
    else:
        holder[field] = value
    damaged.write_text(json.dumps(cell))
    with pytest.raises(ValueError, match=said) as error:
        write_results(out)
    assert str(damaged) in str(error.value) and "Remove the file: the cell is then run again." in str(error.value)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("references.json", '{"scores": {"initial": {"math": 0.1}}, "scale": {}, "date": ""}', "it lacks code, if,"),
        ("diagnosis/multicap.json", '{"domains": [{"domain": "math"}]}', "lacks domains.0.rollouts, domains.0.score"),
    ],
)
def test_other_damaged_files_of_a_comparison_are_named(
    finished: Path, tmp_path: Path, file: str, text: str, said: str
) -> None:
    out = shutil.copytree(finished, tmp_path / "out", ignore=shutil.ignore_patterns("runs", "parameter-average"))
    (out / file).write_text(json.dumps({"schema_version": 1, **json.loads(text)}))
    with pytest.raises(ValueError, match=f"{Path(file).name} .*{said}"):
        write_results(out)


def test_prompts_are_listed_in_the_order_of_the_domains(finished: Path) -> None:
    text = write_results(finished).read_text()
    rows = [line.split(" | ")[0].strip("| ") for line in text.split("Where trust's weight went")[1].splitlines()[4:]]
    listed = [row for row in rows if row]
    order = ["math", "code", "if", "math+code", "math+if", "code+if"]
    assert listed == [group for group in order if group in listed] and len(listed) > 3


def test_results_of_another_scale_are_not_mixed_in(finished: Path) -> None:
    with pytest.raises(ValueError, match="results made with scale .*--out"):
        reproduce(finished, [0], scale=Scale(steps=4))


def test_cells_of_another_world_are_not_mixed_in(finished: Path, tmp_path: Path) -> None:
    """A whole world, with a card that fits it: only its specialist for code is another."""
    other = shutil.copytree(SHIPPED, tmp_path / "world")
    shutil.rmtree(other / "code")
    shutil.copytree(other / "math", other / "code")
    card = json.loads((other / "card.json").read_text())
    card["stages"]["code"]["sha256"] = card["stages"]["math"]["sha256"]
    (other / "card.json").write_text(json.dumps(card))
    cells = {path: path.read_bytes() for path in (finished / "cells").rglob("*.json")}
    with pytest.raises(ValueError, match="results made with world .*--out"):
        reproduce(finished, [0, 1, 2], only=["multicap", "trust"], world=World(other), scale=SMALL)
    assert {path: path.read_bytes() for path in (finished / "cells").rglob("*.json")} == cells


def test_every_cell_says_what_it_was_made_with_and_so_do_the_results(finished: Path) -> None:
    for cell in load_cells(finished):
        assert cell["versions"]["torch"] == torch.__version__ and cell["versions"]["trl"] == trl.__version__
        assert cell["device"] == made_by()["device"]
    text = write_results(finished).read_text()
    assert f"torch {torch.__version__}, transformers {transformers.__version__}" in text
    assert made_by()["device"] in text and "Averaged here" not in text


def test_cells_of_several_machines_or_versions_are_named(finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished, tmp_path / "out")
    moved = out / "cells" / "multicap" / "trust" / "seed-0.json"
    cell = json.loads(moved.read_text())
    cell["versions"]["torch"], cell["device"] = "2.11.0", "NVIDIA H200"
    moved.write_text(json.dumps(cell))
    undated = out / "cells" / "multicap" / "uniform" / "seed-1.json"  # of a release that did not record it
    cell = json.loads(undated.read_text())
    del cell["versions"], cell["device"]
    undated.write_text(json.dumps(cell))
    with pytest.warns(UserWarning, match="different machines or library versions") as told:
        text = write_results(out).read_text()
    for said in (str(told[0].message), text):
        assert "multicap/trust/seed-0: device NVIDIA H200, torch 2.11.0;" in said
        assert "multicap/uniform/seed-1: not recorded" in said
        same = "the rows without distillation, multicap/trust/seed-1, multicap/uniform/seed-0"
        assert f"{same}: device {made_by()['device']}, torch {torch.__version__};" in said
    (out / "cells" / "multicap" / "trust" / "seed-1.json").unlink()
    with pytest.warns(UserWarning, match="made elsewhere, and new cells would be averaged with them.*NVIDIA H200"):
        reproduce(out, [0, 1], only=["multicap", "trust"], scale=SMALL)


def test_cells_run_with_deterministic_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the workers' own function; where there is no GPU the numbers are the same either way."""
    seen = []
    monkeypatch.setattr(
        reproducing,
        "run_cell",
        lambda *args, **how: (
            seen.append((torch.are_deterministic_algorithms_enabled(), os.environ["CUBLAS_WORKSPACE_CONFIG"]))
            or run_cell(*args, **how)
        ),
    )
    prepare(tmp_path, World(), SMALL)
    reproducing._run(Cell("multicap", "uniform", 0), tmp_path, World(), SMALL)
    assert seen == [(True, ":4096:8")]
    assert not torch.are_deterministic_algorithms_enabled()


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


def test_an_unknown_method_and_a_folder_that_cannot_be_written_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leaves nothing to run"):
        all_cells([0], ["multicap", "routed"])
    with pytest.raises(ValueError, match="--only trsut: no such .*trust"):
        reproduce(tmp_path, [0], only=["trsut"], scale=SMALL)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write into .*--out"):
        reproduce(tmp_path / "file" / "below", [0], scale=SMALL)


def test_an_altered_checkpoint_is_named_with_its_digest(tmp_path: Path) -> None:
    world = shutil.copytree(SHIPPED, tmp_path / "world")
    (world / "code" / "model.safetensors").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"code.model\.safetensors was altered.*the card expects [0-9a-f]{64}"):
        reproduce(tmp_path / "out", [0], world=World(world), scale=SMALL)


@pytest.mark.parametrize(
    "card",
    ['{"schema_version": 1}', '{"schema_version": 1, "stages": {"reference": 3}}', "[]", '{"schema_ver', None],
    ids=["no stages", "no digests", "no object", "half", "no card"],
)
def test_a_world_with_a_wrong_card_is_told_at_once(tmp_path: Path, card: str | None) -> None:
    (tmp_path / "world").mkdir()
    if card is not None:
        (tmp_path / "world" / "card.json").write_text(card)
    command = ["reproduce", "testbed", "--world", str(tmp_path / "world"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert "card.json" in result.output and "trustmopd testbed build --out DIR" in result.output
    assert not (tmp_path / "out").exists()
