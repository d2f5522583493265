"""Each cell of each table again, from the JSON files, by a few independent lines."""

import csv
import io
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import recorded
from prompts import pools
from typer.testing import CliRunner

from trustmopd.cli import app
from trustmopd.recipe import Recipe
from trustmopd.report.readers.run import find_runs, method_name, open_run
from trustmopd.report.statistics.comparison import Comparison, compare
from trustmopd.report.statistics.summary import Summary, summarise_run
from trustmopd.report.tables import all_tables
from trustmopd.util.files import write_json

TITLE = {"without-mu": "without μ", "gamma-3": "γ = 3"}


def tables_of(*paths: Path) -> dict[str, list[dict[str, str]]]:
    tables = all_tables(recorded.compared(*paths))
    return {each.name: list(csv.DictReader(io.StringIO(each.table.to_csv()))) for each in tables}


def row(table: list[dict[str, str]], name: str) -> dict[str, str]:
    (found,) = [each for each in table if next(iter(each.values())) == name]
    return found


def overall(study: Path, prompts: str, method: str, column: str = "overall") -> list[float]:
    files = sorted((study / prompts / method).glob("*/evaluation/scores.json"))
    return [json.loads(file.read_text())[method][column] for file in files]


def percent(values: list[float], sign: str = "") -> str:
    return f"{100 * mean(values):{sign}.1f} ± {100 * stdev(values):.1f}"


@pytest.fixture(scope="module")
def made(study: Path) -> dict[str, list[dict[str, str]]]:
    return tables_of(study)


def test_the_main_comparison_says_on_how_many_prompts_where_all_runs_agree(study: Path, tmp_path: Path) -> None:
    other = recorded.rows_of({**recorded.REFERENCES, "other": {"math": 0.3, "code": 0.3, "if": 0.3}}, prompts=5)
    recorded.make_run(tmp_path / "other", steps=1, rule="random", scores=other)
    for paths, said in (([study], True), ([study, tmp_path], False)):
        (main,) = [each for each in all_tables(recorded.compared(*paths)) if each.name == "main"]
        assert ("on 6 prompts" in main.note) == said  # two of each domain


def test_the_main_comparison_is_mean_and_deviation_over_seeds(
    study: Path, made: dict[str, list[dict[str, str]]]
) -> None:
    for prompts, methods in {"multicap": ("trust", "uniform"), "singlecap": ("trust",)}.items():
        for method in methods:
            found = row(made["main"], f"{prompts}, {method}")
            for column in ("math", "code", "if", "overall"):
                assert found[column] == percent(overall(study, prompts, method, column))
            values = overall(study, prompts, method)
            assert found["Δ initial"] == percent([value - 0.2 for value in values], "+")
            assert found["recovered"] == percent([(value - 0.2) / 0.3 for value in values])
    assert row(made["main"], "routed teachers")["recovered"] == "100.0"
    assert row(made["main"], "teacher math")["Δ initial"] == "+10.0"


def test_gamma_shows_how_concentrated_the_weights_are(study: Path, made: dict[str, list[dict[str, str]]]) -> None:
    for method, label in (("trust", "γ = 7"), ("gamma-3", "γ = 3")):
        found = row(made["gamma"], f"multicap, {label}")
        concentrations = [
            mean(json.loads(line)["agreement/max_weight"] for line in file.read_text().splitlines())
            for file in sorted((study / "multicap" / method).glob("*/metrics.jsonl"))
        ]
        assert found["mean max weight"] == f"{mean(concentrations):.2f} ± {stdev(concentrations):.2f}"


def test_cost_sums_seeds_counts_calibration_once_and_compares_a_seed_with_a_seed(
    study: Path, made: dict[str, list[dict[str, str]]]
) -> None:
    found = row(made["cost"], "multicap, trust")
    assert (found["teachers scored"], found["reference scored"], found["seeds"]) == ("3", "1", "2")
    assert found["parameters scored"] == "1.23M"
    assert found["device-hours"] == "0.3" and found["against uniform"] == "+0.0%" and found["peak GiB"] == "3.00"
    assert row(made["cost"], "multicap, uniform")["reference scored"] == "0"
    once = row(made["cost"], "multicap, calibration")
    assert (once["seeds"], once["device-hours"], once["against uniform"]) == ("once", "0.01", "3.3% of trust")


def placed(folder: Path, placement: str, hours: float, *, on: str | None = None, held: int = 0, **config: Any) -> Path:
    """A run with its teachers there, the one of math `on` a place of its own, and Ray on `held` devices."""
    run = recorded.make_run(folder, steps=1, rollouts=1, teacher_placement=placement, **config)
    teachers = {name: {"model": name, "on": on if name == "math" else None} for name in recorded.TEACHERS}
    recipe = Recipe.model_validate({"name": "one", "student": "s", "teachers": teachers, "prompts": {"path": "p"}})
    (run / "recipe.yaml").write_text(recipe.to_yaml())
    recorded.change(run, "training.device_hours", hours, "cost.json")
    cost = json.loads((run / "cost.json").read_text())
    write_json(run / "cost.json", cost | {"elsewhere": {"math": held} if held else {}})
    return run


def test_runs_that_differ_in_where_teachers_live_have_rows_of_their_own(tmp_path: Path) -> None:
    scores = recorded.scores_of("one", 0.44)
    placed(tmp_path / "1", "resident", 0.1, scores=scores)
    placed(tmp_path / "2", "ray", 0.5, held=4, scores=scores)
    placed(tmp_path / "3", "resident", 0.3, on="ray", held=1, scores=scores)
    placed(tmp_path / "4", "resident", 0.2, on="local", seed=1, scores=scores)
    placed(tmp_path / "5", "resident", 0.05, rule="uniform", scores=scores)
    out = tmp_path / "out"
    said = CliRunner().invoke(app, ["report", *(str(tmp_path / name) for name in "12345"), "--out", str(out)])
    assert said.exit_code == 0, said.output
    made = {name: list(csv.DictReader((out / "tables" / f"{name}.csv").open())) for name in ("cost", "main")}
    shown = {each[""]: (each["seeds"], each["device-hours"], each["against uniform"]) for each in made["cost"]}
    assert shown == {
        "uniform": ("1", "0.05", "+0.0%"),
        "trust": ("2", "0.3", "+200.0%"),
        "trust, placement ray": ("1", "0.5", "–"),
        "trust, placement resident (math ray)": ("1", "0.3", "–"),
        "calibration": shown["calibration"],
    }
    assert {each[""] for each in made["main"]} > shown.keys() - {"uniform", "calibration"}
    assert "Up to 4 devices" in (out / "report.html").read_text()


def test_a_run_that_is_left_out_says_nothing_of_the_cost(tmp_path: Path) -> None:
    placed(tmp_path / "1", "ray", 0.1, held=1)
    placed(tmp_path / "2", "ray", 0.1, held=4)
    comparison = recorded.compared(tmp_path)
    (cost,) = [each for each in all_tables(comparison) if each.name == "cost"]
    assert "Up to 1 devices" in cost.note
    assert any(str(tmp_path / "2") in each and "left out" in each for each in comparison.warnings)


def test_evaluation_counts_where_it_was_measured(tmp_path: Path) -> None:
    run = recorded.make_run(tmp_path / "trust")
    recorded.evaluate(run, device_hours=0.2)
    assert row(tables_of(run)["cost"], "trust")["device-hours"] == "0.3"


def test_evaluation_counts_for_all_or_for_none(tmp_path: Path) -> None:
    for rule in ("trust", "uniform"):
        recorded.make_run(tmp_path / rule, rule=rule)
    recorded.evaluate(tmp_path / "trust", device_hours=0.2)
    (found,) = [each for each in all_tables(recorded.compared(tmp_path)) if each.name == "cost"]
    assert "without evaluation" in found.note
    assert row(tables_of(tmp_path)["cost"], "trust")["against uniform"] == "+0.0%"


def test_an_unfinished_run_has_rows_of_its_own_and_no_share_of_uniform(tmp_path: Path) -> None:
    for name, rule, seed, steps, overall in (
        ("whole", "trust", 0, 4, 0.44), ("half", "trust", 1, 1, 0.22), ("uniform", "uniform", 0, 4, 0.4),
    ):  # fmt: skip
        scores = recorded.scores_of(name, overall)
        run = recorded.make_run(tmp_path / name, rule=rule, seed=seed, steps=steps, max_steps=4, scores=scores)
        recorded.change(run, "training.device_hours", 0.1 * steps, "cost.json")
    made = tables_of(tmp_path)
    assert row(made["main"], "trust")["overall"] == "44.0"
    assert row(made["main"], "trust, step 1 of 4")["overall"] == "22.0"
    assert row(made["cost"], "trust")["against uniform"] == "+0.0%"
    assert row(made["cost"], "trust, step 1 of 4")["against uniform"] == "–"
    assert row(made["cost"], "calibration")["against uniform"] == "2.5% of trust"


def test_calibration_is_a_share_of_the_method_that_paid_for_it(tmp_path: Path) -> None:
    run = recorded.make_run(tmp_path / "gamma", steps=1, rollouts=1, gamma=3.0)
    assert row(tables_of(run)["cost"], "calibration")["against uniform"] == "10.0% of γ = 3"


def test_calibration_is_a_share_of_the_hours_in_the_row_above_it(tmp_path: Path) -> None:
    for seed in (0, 1):
        recorded.make_run(tmp_path / str(seed), steps=1, rollouts=1, seed=seed)
    (tmp_path / "1" / "cost.json").unlink()  # lost: its hours are in no row
    found = tables_of(tmp_path)["cost"]
    assert (row(found, "trust")["seeds"], row(found, "trust")["device-hours"]) == ("1", "0.1")
    assert row(found, "calibration")["against uniform"] == "10.0% of trust"


def calibrated_elsewhere(study: Path, **config: Any) -> Path:
    """A run whose mu was measured, and paid for, in another folder of its study."""
    run = recorded.make_run(study / "runs" / "trust", **config)
    cost = json.loads((run / "cost.json").read_text())
    recorded.change(run, "calibration", None, "cost.json")
    del cost["training"]  # as `trustmopd calibrate` leaves it
    write_json(study / "calibration" / "cost.json", cost)
    return run


def test_a_calibration_that_another_folder_paid_for_is_found_from_anywhere(tmp_path: Path) -> None:
    paths = {"calibration_path": "study/calibration/calibration.json", "run_dir": "study/runs/trust"}
    run = calibrated_elsewhere(tmp_path / "study", **paths)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["directory"] = str(tmp_path)
    write_json(run / "manifest.json", manifest)
    assert row(tables_of(run)["cost"], "calibration")["device-hours"] == "0.01"
    moved = (tmp_path / "study").rename(tmp_path / "renamed")
    assert row(tables_of(moved / "runs")["cost"], "calibration")["device-hours"] == "0.01"


def test_a_calibration_whose_cost_is_not_found_is_said(tmp_path: Path) -> None:
    paths = {"calibration_path": "study/calibration/calibration.json", "run_dir": "study/runs/trust"}
    run = calibrated_elsewhere(tmp_path / "study", **paths)
    (tmp_path / "study" / "calibration" / "cost.json").write_text("{")
    said = " ".join(map(str, summarise_run(open_run(run)).missing))
    assert str(tmp_path / "study" / "calibration" / "cost.json") in said
    (tmp_path / "study" / "calibration" / "cost.json").unlink()
    found = summarise_run(open_run(run))
    assert any("calibration/cost.json" in each.what for each in found.missing)
    assert not [each for each in tables_of(run)["cost"] if each[""] == "calibration"]


@pytest.mark.parametrize("named", ["out", "out/prompts.parquet"])
def test_decontamination_comes_from_the_card_that_data_build_wrote(tmp_path: Path, named: str) -> None:
    config = pools.small(tmp_path)
    longest = sorted(pools.mathematics(120), key=lambda each: -len(each["question"].split()))
    seen = pools.mathematics(120)[:7]  # the evaluation set: each is removed as an exact repetition
    long, new = (next(each for each in longest if (each in seen) == known)["question"] for known in (True, False))
    with (tmp_path / "math.jsonl").open("a") as file:
        for text in (new, new, f"{new} more", f"{long} more"):
            file.write(json.dumps({"question": text}) + "\n")
    result = CliRunner().invoke(app, ["data", "build", str(config)])
    assert result.exit_code == 0, result.output
    run = recorded.make_run(tmp_path / "run", steps=1)
    (run / "recipe.yaml").write_text(f"name: x\nprompts: {{path: {tmp_path / named}}}\n")
    found = tables_of(run)["decontamination"]
    math = row(found, f"{Path(named).stem}, math")
    assert list(math.values())[1:] == ["124", "2", "1", "7", "1", "113"]
    assert [each["pool"].split(", ")[1] for each in found] == ["math", "code", "if"]  # blocks are no candidates


def test_a_card_of_another_shape_is_said_and_left_out(tmp_path: Path) -> None:
    config = pools.small(tmp_path)
    assert CliRunner().invoke(app, ["data", "build", str(config)]).exit_code == 0
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    card["decontamination"]["pools"]["math"]["kept"] = "many"
    (tmp_path / "out" / "card.json").write_text(json.dumps(card))
    run = recorded.make_run(tmp_path / "run", steps=1)
    (run / "recipe.yaml").write_text(f"name: x\nprompts: {{path: {tmp_path / 'out'}}}\n")
    assert "decontamination" not in tables_of(run)
    (said,) = [each.what for each in summarise_run(open_run(run)).missing if "card.json" in each.what]
    assert "decontamination.pools.math.kept" in said and str(tmp_path / "out") in said


def test_scores_before_training_come_from_the_diagnosis(tmp_path: Path) -> None:
    for prompts, seed, field in (("one", 0, "math"), ("one", 1, "math"), ("two", 0, "code")):
        run = recorded.make_run(tmp_path / f"{prompts}-{seed}", steps=1, rollouts=1, seed=seed)
        (run / "recipe.yaml").write_text(f"name: x\nprompts: {{path: {prompts}.jsonl}}\n")
        recorded.write_diagnosis(run, field, {"math": 1.25, "if": 0.5}, {"math": 0.1, "if": 0.2})
    assert row(tables_of(tmp_path / "one-0")["scores_before"], "if")["math"] == "0.500 ± 0.200"
    both = tables_of(tmp_path)["scores_before"]  # the seeds share theirs
    assert [each["teacher"] for each in both] == ["one, math", "one, if", "two, math", "two, if"]
    assert row(both, "one, math") == {"teacher": "one, math", "math": "1.250 ± 0.100", "code": "–"}
    assert row(both, "two, if")["code"] == "0.500 ± 0.200"


def test_the_same_run_twice_is_warned_of_and_counts_once(study: Path) -> None:
    first = summarise_run(find_runs([study / "multicap" / "trust" / "seed-0"])[0])
    found: Comparison = compare([first, first])
    assert len(found.warnings) == 1 and first.path in found.warnings[0]
    assert found.seeds == 1 and len(found.settings[0].runs) == 1


def test_two_prompt_sets_of_one_name_are_two_settings(tmp_path: Path) -> None:
    for folder, fingerprint in (("a", "aaaa1"), ("b", "bbbb2")):
        run = recorded.make_run(tmp_path / folder, steps=1, rollouts=1, scores=recorded.scores_of("trust", 0.4))
        (run / "recipe.yaml").write_text(f"name: trust\nprompts: {{path: {folder}/train.jsonl}}\n")
        recorded.change(run, "prompts.fingerprint", fingerprint)
    found = recorded.compared(tmp_path)
    assert [setting.prompts for setting in found.settings] == ["train aaaa1", "train bbbb2"] and not found.warnings


@pytest.mark.unit
@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"allocation": "trust"}, "trust"),
        ({"allocation": "trust", "gamma": 3}, "γ = 3"),
        ({"allocation": "trust", "score": "likelihood"}, "likelihood"),
        ({"allocation": "trust", "score": "mine.rule", "granularity": "response"}, "mine.rule, response-level"),
        ({"allocation": "single", "single_teacher": "code"}, "single code"),
        ({"allocation": "routed"}, "routed"),
        ({}, "unknown rule"),
    ],
)
def test_methods_are_named_as_in_the_paper(config: dict, name: str) -> None:
    assert method_name(config) == name


def test_summary_is_plain_data(trusting: Path) -> None:
    found: Summary = summarise_run(find_runs([trusting])[0])
    assert json.loads(json.dumps(found.to_dict()))["method"] == "trust"


# ---- Runs that are not seeds of one experiment


def scored(low: float, high: float, own: float) -> dict[str, Any]:
    return recorded.rows_of({"initial": {"math": low}, "teacher-math": {"math": high}, "mine": {"math": own}})


def test_recovery_is_by_the_teachers_that_a_run_had(tmp_path: Path) -> None:
    recorded.make_run(tmp_path / "a", steps=1, seed=0, scores=scored(0.2, 0.6, 0.4))
    recorded.make_run(tmp_path / "b", steps=1, seed=1, scores=scored(0.2, 0.6, 0.5))
    two = ["math", "code"]
    recorded.make_run(tmp_path / "c", steps=1, seed=0, teachers=two, groups=[["math"]], scores=scored(0.2, 0.4, 0.4))
    made = tables_of(tmp_path)
    assert row(made["main"], "trust")["recovered"] == percent([0.5, 0.75])
    assert row(made["main"], "trust, teachers math + code")["recovered"] == "100.0"
    assert row(made["main"], "teachers math + code: routed teachers")["overall"] == "40.0"
    assert row(made["main"], "teachers math + code + if: routed teachers")["overall"] == "60.0"
    assert row(made["allocation"], "trust, teachers math + code, math")["if"] == "–"


def test_teachers_of_one_name_and_other_weights_are_other_teachers(tmp_path: Path) -> None:
    for seed, mark in enumerate(("aaaa1", "bbbb2")):
        run = recorded.make_run(tmp_path / mark, steps=1, seed=seed, scores=scored(0.2, 0.6 + seed / 10, 0.4))
        recorded.change(run, "models.teachers.if.fingerprint", mark)
    idle = recorded.make_run(tmp_path / "idle", rule="single", single_teacher="math", steps=1)
    for name in ("code", "if"):  # which were not loaded, and may be those of the first run
        recorded.change(idle, f"models.teachers.{name}.fingerprint", None)
    found = {each[""]: each["recovered"] for each in tables_of(tmp_path)["main"]}
    assert found["trust"] == "50.0" and found["trust, teachers math + code + if bbbb2"] == "40.0"


def test_runs_that_differ_in_more_than_their_seed_are_not_averaged_and_none_is_dropped(tmp_path: Path) -> None:
    for place, rate in enumerate((1e-6, 1e-6, 1e-5)):
        own = scored(0.2, 0.6, 0.3 + 0.1 * place)
        where = {"output_dir": f"runs/{place}", "save_steps": place, "max_grad_norm": 1.0}
        recorded.make_run(tmp_path / str(place), steps=1, seed=place % 2, scores=own, learning_rate=rate, **where)
    found = recorded.compared(tmp_path)
    assert [run.method for run in found.runs] == ["trust", "trust", "trust, learning_rate 1e-05"]
    assert not found.warnings
    main = tables_of(tmp_path)["main"]
    assert row(main, "trust")["overall"] == percent([0.3, 0.4])
    assert row(main, "trust, learning_rate 1e-05")["overall"] == "50.0"


def test_reference_rows_that_disagree_are_told_and_each_run_uses_its_own(tmp_path: Path) -> None:
    recorded.make_run(tmp_path / "a", steps=1, seed=0, scores=scored(0.2, 0.6, 0.4))
    recorded.make_run(tmp_path / "b", steps=1, seed=1, scores=scored(0.3, 0.6, 0.6))
    (said,) = recorded.compared(tmp_path).warnings
    assert str(tmp_path / "a") in said and str(tmp_path / "b") in said and "'initial'" in said
    assert row(tables_of(tmp_path)["main"], "trust")["recovered"] == percent([0.5, 1.0])


def test_where_there_is_no_gap_nothing_is_said_to_be_recovered(tmp_path: Path) -> None:
    for seed in (0, 1):
        recorded.make_run(tmp_path / str(seed), steps=1, seed=seed, scores=scored(0.2, 0.2, 0.3 + 0.1 * seed))
    main = tables_of(tmp_path)["main"]
    assert row(main, "trust")["recovered"] == "–" and row(main, "routed teachers")["recovered"] == "–"
    assert row(main, "trust")["Δ initial"] == percent([0.1, 0.2], "+")
