"""The comparison at a tiny size, through the command line: prompts, diagnosis, students, scores, the page."""

import csv
import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from studies.small_world.cells import Cell, finished_cells
from studies.smollm2 import comparison_stages, row_scores
from studies.smollm2.code_judge import judge
from studies.smollm2.distillation import METHODS, Comparison, all_cells
from studies.smollm2.lora import ADAPTER
from studies.smollm2.results_page import sizes, write_page
from studies.smollm2.row_scores import RowScores
from studies.smollm2.settings import Settings
from trustmopd.evaluation import Unavailable, get_benchmark
from trustmopd.evaluation.benchmark import Benchmark
from trustmopd.evaluation.benchmarks import Loaded
from trustmopd.evaluation.questions import Rows
from trustmopd.prompts.prompt_set import load_prompts
from trustmopd.runs import RunDirectory, newest_checkpoint, step_of
from trustmopd.runs.reference_rows import INITIAL

TRUST, UNIFORM = (Cell("multicap", method, 0) for method in ("trust", "uniform"))
ROWS = ("initial", "teacher-math", "teacher-code", "teacher-if", "parameter-average", TRUST.name, UNIFORM.name)


def only(*names):
    return [part for name in names for part in ("--only", name)]


@pytest.fixture(scope="module")
def trained(base, run, tmp_path_factory):
    """Two students on mixed prompts, diagnosed before."""
    out = shutil.copytree(base, tmp_path_factory.mktemp("comparison") / "study")
    for arguments in (
        ("--stage", "diagnose", *only("multicap")),
        ("--stage", "distil", *only(TRUST.name, UNIFORM.name)),
    ):
        result = run(out, *arguments)
        assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def evaluated(trained, run):
    result = run(trained, "--stage", "evaluate", "--stage", "results", *only(*ROWS))
    assert result.exit_code == 0, result.output
    return trained


def test_three_rules_have_three_seeds_and_mixed_prompts_are_not_routed():
    cells = all_cells(3)
    assert len(cells) == len(set(cells)) == 3 * 5 + 4 + 8
    assert {cell.method for cell in cells} == set(METHODS)
    assert Cell("multicap", "routed", 0) not in cells
    assert cells[-1].method == "teacher-student-kl"  # the proxies come last


def test_prompt_sets_are_screened_against_every_evaluation_set(trained):
    cards = {
        name: json.loads((trained / "prompts" / name / "card.json").read_text()) for name in ("singlecap", "multicap")
    }
    kinds = {"math", "code", "if", "svamp", "math+if", "code+if", "math+code"}
    for card in cards.values():
        assert set(card["comparison"]) == kinds | {"mbpp", "ifeval"}
    mixed = load_prompts(trained / "prompts" / "multicap")
    assert len(mixed) == 3 * 4 + 3 * 4
    assert {tuple(row["capabilities"]) for row in mixed if row["domain"] is None} == {
        ("math", "if"),
        ("code", "if"),
        ("math", "code"),
    }
    evaluated = {
        json.loads(line)["prompt"]
        for file in (trained / "prompts" / "evaluation").iterdir()
        for line in file.read_text().splitlines()
    }
    assert evaluated.isdisjoint(row["prompt"][0]["content"] for row in mixed)


def test_only_the_prompt_set_that_is_named_is_diagnosed(trained):
    assert [folder.name for folder in (trained / "diagnosis").iterdir()] == ["multicap"]


def test_every_policy_shares_one_set_of_weights(trained):
    manifest = json.loads(TRUST.run(trained).manifest.read_text())
    assert manifest["models"]["student"]["adapter"]["r"] == 2
    found = json.loads((trained / "diagnosis" / "multicap" / "diagnosis.json").read_text())
    assert {each["domain"] for each in found["domains"]} == {"math", "code", "if", "mixed"}
    assert json.loads(TRUST.run(trained).diagnosis.read_text()) == found
    used = TRUST.run(trained).calibration
    measured = trained / "diagnosis" / "multicap" / "calibration.json"
    assert json.loads(used.read_text())["mu"] == json.loads(measured.read_text())["mu"]


def test_a_finished_student_is_small_and_is_not_trained_again(trained, run):
    checkpoint = newest_checkpoint(TRUST.run(trained).path)
    assert step_of(checkpoint) == 2
    assert not list(checkpoint.glob("optimizer*"))
    assert {tensor.dtype for tensor in load_file(checkpoint / ADAPTER).values()} == {torch.bfloat16}
    before = (checkpoint / ADAPTER).stat().st_mtime_ns
    result = run(trained, "--stage", "distil", *only(TRUST.name))
    assert result.exit_code == 0 and str(TRUST.run(trained).path) in result.stdout
    assert (checkpoint / ADAPTER).stat().st_mtime_ns == before


def test_a_student_stopped_by_the_clock_continues(trained, run, tmp_path):
    out = shutil.copytree(trained, tmp_path / "study")
    cell = Cell("multicap", "uniform", 1)
    assert run(out, "--stage", "distil", *only(cell.name), "--stop-after", "0").exit_code == 0
    assert step_of(newest_checkpoint(cell.run(out).path)) == 1
    assert run(out, "--stage", "distil", *only(cell.name)).exit_code == 0
    assert step_of(newest_checkpoint(cell.run(out).path)) == 2
    steps = [json.loads(line)["step"] for line in cell.run(out).metrics.read_text().splitlines()]
    assert sorted(set(steps)) == [1, 2]


@pytest.mark.slow
def test_the_learning_rate_is_chosen_by_uniforms_loss_in_processes_of_their_own(trained, run, tmp_path):
    out = shutil.copytree(trained, tmp_path / "study")
    result = run(out, "--stage", "sweep")
    assert result.exit_code == 0, result.output
    found = json.loads((out / "sweep.json").read_text())
    assert found["chosen"] == 2e-4
    assert found["losses"].keys() == {"0.0002"}
    manifest = json.loads((out / "sweep" / "lr-0.0002" / "manifest.json").read_text())
    assert (manifest["config"]["allocation"], manifest["config"]["learning_rate"]) == ("uniform", 2e-4)
    result = run(out, "--stage", "distil", *only("multicap/uniform/seed-1"))  # two students have the rate before it
    assert result.exit_code == 1
    assert str(TRUST.run(out).path) in result.stderr and "0.0005" in result.stderr and "0.0002" in result.stderr


@pytest.mark.parametrize(("best", "setting"), [(5e-4, "sweep_lowest"), (1e-3, ""), (2e-3, "sweep_count")])
def test_a_best_rate_at_the_edge_of_the_sweep_is_told(tmp_path, capsys, best, setting):
    changes = ["distil.sweep_lowest=5e-4", "distil.sweep_factor=2", "distil.sweep_count=3"]
    sweep = Comparison(tmp_path, Settings().with_changes(changes), {})
    for name, rate in sweep.sweep_rates().items():
        run = RunDirectory(tmp_path / "sweep" / name)
        run.path.mkdir(parents=True)
        run.metrics.write_text(json.dumps({"loss": 0.1 if rate == best else 0.2}) + "\n")
    sweep.choose_rate()
    assert sweep.learning_rate == best
    for told in (capsys.readouterr().out, write_page(sweep, []).read_text()):
        assert setting in told and told.count("distil.sweep_") == bool(setting)


def test_a_seed_that_the_study_does_not_have_is_told(trained, run):
    result = run(trained, "--stage", "distil", *only("multicap/trust/seed-2"))
    assert result.exit_code == 1
    assert "multicap/trust/seed-2" in result.stderr and "distil.seeds" in result.stderr


@pytest.mark.slow
def test_a_method_and_a_policy_are_both_evaluated(trained, run, tmp_path):
    out = shutil.copytree(trained, tmp_path / "study", ignore=shutil.ignore_patterns("evaluation", "mixed", "public"))
    shutil.copytree(trained / "prompts", out / "prompts", dirs_exist_ok=True)
    result = run(out, "--stage", "evaluate", *only("initial", "trust"))
    assert result.exit_code == 0, result.output
    assert sorted(folder.name for folder in (out / "evaluation").iterdir()) == ["initial", TRUST.row]


def test_scores_of_all_rows_make_the_tables_and_the_page(evaluated):
    cells = finished_cells(evaluated, METHODS)
    assert list(cells) == [TRUST, UNIFORM]
    assert set(cells[TRUST]["benchmarks"]) == {"smollm2_math", "smollm2_code", "smollm2_if"}
    with (evaluated / "results.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert {"initial", "routed-teachers", "parameter-average", "trust", "uniform"} <= rows.keys()
    mixed = json.loads((evaluated / "mixed" / "scores.json").read_text())
    assert set(mixed["initial"]["benchmarks"]) == {"smollm2_math_if", "smollm2_code_if", "smollm2_math_code"}
    assert (evaluated / "report.html").is_file()
    page = (evaluated / "results.md").read_text()
    weights = page.partition("## Where the weight went")[2].partition("## ")[0]
    assert "| trust, " in weights and "uniform" not in weights and "figures/allocation.png" in weights
    for name in (TRUST.row, "routed-teachers", "own teacher leads on", "smollm2_math_if", f"judged by: {judge()}."):
        assert name in page
    assert page.count("Not measured yet") == 4  # specialists, diagnosis of SingleCap, learning rate, public benchmarks


def _grade_all(row, score):
    for graded in row.glob("smollm2_*.jsonl"):
        if not graded.name.endswith(".responses.jsonl"):
            lines = map(json.loads, graded.read_text().splitlines())
            graded.write_text("".join(json.dumps({**line, "score": score}) + "\n" for line in lines))


def _second_seed(out, cell):
    """Of a run: a copy of the first."""
    other = Cell(cell.prompts, cell.method, 1)
    shutil.copytree(cell.run(out).path, other.run(out).path)
    first, second = (out / "evaluation" / each.row / f"seed-{each.seed}" for each in (cell, other))
    shutil.copytree(first, second)
    record = json.loads((second / "run.json").read_text())
    (second / "run.json").write_text(json.dumps({**record, "seed": 1}))
    return other, second


def test_trust_is_compared_with_every_rule_over_the_seeds_that_both_have(evaluated, run, tmp_path):
    out = shutil.copytree(evaluated, tmp_path / "study")
    _grade_all(out / "evaluation" / TRUST.row / "seed-0", 0.5)
    _grade_all(out / "evaluation" / UNIFORM.row / "seed-0", 0.25)
    _, second = _second_seed(out, TRUST)
    _grade_all(second, 1.0)
    assert run(out, "--stage", "results").exit_code == 0
    page = (out / "results.md").read_text()
    (ahead,) = re.findall(rf"^\| {UNIFORM.row} +\| +(.*\]) +\| +1 \|$", page, re.MULTILINE)
    assert ahead == "+25.0 [+25.0, +25.0]"


def test_the_student_with_all_weights_has_scores_and_is_not_in_the_report(evaluated, run, tmp_path):
    out, full = shutil.copytree(evaluated, tmp_path / "study"), Cell("singlecap", "full-weights", 0)
    shutil.copytree(TRUST.run(out).path, full.run(out).path)
    folder = shutil.copytree(out / "evaluation" / TRUST.responses, out / "evaluation" / full.responses)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "method": full.row}))
    full.run(out).scores.unlink()
    assert run(out, "--stage", "results").exit_code == 0
    assert full.row in (out / "evaluation" / "tables" / "scores.md").read_text()
    cost = (out / "tables" / "cost.csv").read_text()
    assert cost == (evaluated / "tables" / "cost.csv").read_text()


def test_a_seed_that_is_half_evaluated_takes_nothing_from_the_other(evaluated, run, tmp_path):
    out = shutil.copytree(evaluated, tmp_path / "study", ignore=shutil.ignore_patterns("scores.json"))
    _, second = _second_seed(out, TRUST)
    _stop_before_the_last_response(second)
    assert run(out, "--stage", "results").exit_code == 0
    assert finished_cells(out, METHODS) == finished_cells(evaluated, METHODS)


@pytest.mark.parametrize("lost", ["a response", "the logged steps"])
def test_a_run_that_was_begun_anew_is_left_out_of_the_tables_and_named(evaluated, run, tmp_path, lost):
    out = shutil.copytree(evaluated, tmp_path / "study")
    if lost == "a response":
        _stop_before_the_last_response(out / "evaluation" / UNIFORM.row / "seed-0")
    else:
        UNIFORM.run(out).metrics.write_text("")
    result = run(out, "--stage", "results")
    assert result.exit_code == 0, result.output
    assert UNIFORM.name in result.stdout
    with (out / "cells.csv").open() as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["trust"]


def test_the_page_says_the_size_of_the_runs_and_not_of_the_command(evaluated, run, tmp_path):
    out = shutil.copytree(evaluated, tmp_path / "study")
    assert run(out, "--stage", "results", "distil.steps=116", "distil.batch_size=64").exit_code == 0
    page = (out / "results.md").read_text()
    assert "2 steps of 4 prompts" in page and "116" not in page


def test_sizes_names_only_the_runs_that_differ_from_most(evaluated, tmp_path):
    out = shutil.copytree(evaluated, tmp_path / "study")
    second, _ = _second_seed(out, TRUST)
    recipe = UNIFORM.run(out).recipe
    recipe.write_text(recipe.read_text().replace("max_steps: 2", "max_steps: 7"))
    usual, other = sizes(out, [TRUST, UNIFORM, second]).split(". ")
    assert usual.startswith("2 steps of 4 prompts") and other.startswith(f"{UNIFORM.name}: 7 steps of 4 prompts")


def test_public_benchmarks_are_sampled_first_and_graded_later_without_the_models(evaluated, run, tmp_path):
    try:
        for name in ("mbpp", "ifeval"):
            get_benchmark(name).ready()
    except Unavailable as error:
        pytest.skip(str(error))
    out = tmp_path / "study"
    shutil.copytree(evaluated / "public", out / "public")
    result = run(out, "--stage", "grade", "--stage", "results")
    assert result.exit_code == 0, result.output
    row = out / "public" / TRUST.row / "seed-0"
    sampled, graded = (
        [json.loads(line)["id"] for line in (row / name).read_text().splitlines()]
        for name in ("mbpp.responses.jsonl", "mbpp.jsonl")
    )
    assert sampled == ["11", "12"]  # MBPP's test problems
    assert sorted(graded) == sampled
    scores = json.loads((out / "public" / "scores.json").read_text())
    assert scores["initial"]["benchmarks"]["ifeval"]["prompts"] == 2


def test_what_can_be_graded_here_is_and_the_rest_is_named(evaluated, run, tmp_path, monkeypatch):
    def lacking():
        raise Unavailable("there is no sandbox here.")

    graded, ready = set(), {"svamp": lambda: None, "mbpp": lacking, "ifeval": lambda: None}
    some = [Loaded(replace(get_benchmark(name), ready=how), Rows()) for name, how in ready.items()]
    monkeypatch.setattr(RowScores, "public", lambda _: some)
    monkeypatch.setattr(row_scores, "grade_responses", lambda folder, loaded, **_: graded.add(loaded.benchmark.name))
    out = shutil.copytree(evaluated, tmp_path / "study")
    (out / "results.md").unlink(missing_ok=True)
    result = run(out, "--stage", "grade", "--stage", "results")
    assert result.exit_code == 1 and "mbpp" in result.stderr and "ifeval" not in result.stderr
    assert graded == {"svamp", "ifeval"}
    assert "svamp, mbpp, ifeval" in (out / "results.md").read_text()  # sampled, and here not graded


def test_a_benchmark_that_is_not_graded_in_every_row_is_named_on_the_page(evaluated, run, tmp_path):
    out = shutil.copytree(evaluated, tmp_path / "study")
    mixed = out / "mixed"
    (mixed / "teacher-if" / "smollm2_math_if.jsonl").unlink()
    shutil.rmtree(mixed / TRUST.row)
    for name in ("math_code", "math_if", "code_if"):
        (mixed / UNIFORM.row / "seed-0" / f"smollm2_{name}.jsonl").unlink()
    result = run(out, "--stage", "results")
    assert result.exit_code == 0 and f"{UNIFORM.row}/seed-0" in result.stdout
    section = (out / "results.md").read_text().partition("## Mixed prompts")[2].partition("## ")[0]
    asked, table, told = section.strip().split("\n\n")
    assert "2 of smollm2_math_if" in asked
    assert "smollm2_math_if" not in table and "smollm2_math_if" in told
    assert UNIFORM.row not in table and f"{UNIFORM.row}/seed-0" in told


def test_an_interrupted_command_is_told_with_its_stage_and_its_runs(trained, run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Comparison, "train", interrupted)
    cells = [Cell("singlecap", "trust", 0), Cell("singlecap", "uniform", 0)]
    asked = ["--stage", "distil", *only(*(cell.name for cell in cells)), "--stop-after", "30"]
    result = run(trained, *asked)
    assert result.exit_code != 0
    assert " ".join(asked) in " ".join((result.stdout + result.stderr).split())


def test_named_runs_are_trained_side_by_side_if_asked(trained, run, monkeypatch):
    started = []
    monkeypatch.setattr(
        comparison_stages, "side_by_side", lambda names, command, jobs, _: started.append((names, jobs))
    )
    names = ["singlecap/trust/seed-0", "singlecap/uniform/seed-0"]
    assert run(trained, "--stage", "distil", *only(*names), "--jobs", "2").exit_code == 0
    assert started == [(names, 2)]


def test_a_finished_sweep_and_other_prompts_are_told(trained, run, tmp_path):
    out = shutil.copytree(trained, tmp_path / "study", ignore=shutil.ignore_patterns("runs"))
    (out / "sweep.json").write_text(json.dumps({"schema_version": 1, "chosen": 0.001, "losses": {"0.001": 0.1}}))
    assert "0.001" in run(out, "--stage", "sweep").stdout
    made = sum(1 for _ in (out / "prompts" / "evaluation" / "math.jsonl").open())
    assert f"scoring.prompts={made}" in run(out, "--stage", "prompts", "scoring.prompts=77").stdout
    assert "scoring.prompts" not in run(out, "--stage", "prompts", f"scoring.prompts={made}").stdout


def test_a_run_that_is_not_trained_is_told_how(trained, run):
    result = run(trained, "--stage", "evaluate", *only("singlecap/routed/seed-0"), "--prompts", "own")
    assert result.exit_code == 1 and "--stage distil --only singlecap/routed/seed-0" in result.stderr


def test_svamp_alone_does_not_leave_out_the_other_benchmarks(files, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Benchmark, "load", lambda self, path=None: asked.append((self.name, path)) or Rows())
    monkeypatch.setattr(row_scores, "svamp_rows", lambda held_out, path: asked.append(("svamp", path)) or Rows())
    for given in (("svamp",), ("svamp", "mbpp"), ()):
        RowScores(Comparison(tmp_path, Settings(), {name: name for name in given})).public()
    all_three = [("svamp", "svamp"), ("mbpp", None), ("ifeval", None)]
    assert asked == [*all_three, ("svamp", "svamp"), ("mbpp", "mbpp"), ("svamp", None), *all_three[1:]]


def test_rows_that_lack_a_response_are_evaluated_again_and_no_others(evaluated, run, tmp_path, monkeypatch):
    out = shutil.copytree(evaluated, tmp_path / "study")
    asked = {}

    def noted(names, command, *_):
        asked.update({name: command(name) for name in names})

    monkeypatch.setattr(comparison_stages, "side_by_side", noted)
    assert run(out, "--stage", "evaluate").exit_code == 0
    assert asked == {}
    for row in ("initial", f"{TRUST.row}/seed-0"):
        sampled = out / "public" / row / "mbpp.responses.jsonl"
        sampled.write_text(sampled.read_text()[:-1])  # cut short
    assert run(out, "--stage", "evaluate", "--jobs", "2").exit_code == 0
    assert list(asked) == ["initial", TRUST.name]
    assert all(command[command.index("--jobs") + 1] == "2" for command in asked.values())  # the GPU is shared by two


def test_out_of_time_every_row_has_its_own_prompts_before_one_has_the_others(trained, run, monkeypatch):
    asked = []
    monkeypatch.setattr(RowScores, "evaluate", lambda _, row, part, **__: asked.append((row, part)))
    monkeypatch.setattr(RowScores, "is_evaluated", lambda _, row, part: (row, part) in asked)
    rows = [INITIAL, TRUST]
    assert run(trained, "--stage", "evaluate", *only(INITIAL, TRUST.name)).exit_code == 0
    assert asked == [(row, part) for part in ("own", "mixed", "public") for row in rows]
    asked.clear()
    result = run(trained, "--stage", "evaluate", *only(INITIAL, TRUST.name), "--stop-after", "0")
    assert result.exit_code == 0 and asked == []
    assert INITIAL in result.stdout and TRUST.name in result.stdout
    result = run(trained, "--stage", "evaluate", *only(INITIAL, TRUST.name), "--prompts", "own")
    assert asked == [(row, "own") for row in rows]
    assert run(trained, "--stage", "evaluate", "--prompts", "owned").exit_code == 1


def test_scores_reach_the_runs_on_a_machine_without_the_weights(evaluated, run, tmp_path):
    out = tmp_path / "study"
    without = shutil.ignore_patterns("base", "adapters", "checkpoints", "scores.json")
    shutil.copytree(evaluated, out, ignore=without)
    _stop_before_the_last_response(out / "evaluation" / UNIFORM.row / "seed-0")
    assert finished_cells(out, METHODS) == {}
    assert run(out, "--stage", "results").exit_code == 0
    assert finished_cells(out, METHODS) == {TRUST: finished_cells(evaluated, METHODS)[TRUST]}


def test_results_has_seeds_that_its_own_command_does_not_ask_for(evaluated, run, tmp_path):
    out, more = shutil.copytree(evaluated, tmp_path / "study"), replace(UNIFORM, seed=2)
    for stage in ("distil", "evaluate"):
        arguments = ("--stage", stage, "--prompts", "own", *only(more.name))
        assert run(out, *arguments, "distil.seeds=3").exit_code == 0
    assert run(out, "--stage", "results").exit_code == 0
    assert set(finished_cells(out, METHODS)) == {TRUST, UNIFORM, more}


def test_a_teacher_that_is_half_evaluated_takes_nothing_from_the_students(evaluated, run, tmp_path):
    out = shutil.copytree(evaluated, tmp_path / "study", ignore=shutil.ignore_patterns("scores.json"))
    _stop_before_the_last_response(out / "evaluation" / "teacher-if")
    assert run(out, "--stage", "results").exit_code == 0
    scores, whole = (finished_cells(folder, METHODS)[TRUST] for folder in (out, evaluated))
    assert (scores["if"], scores["overall"], scores["recovery"]) == (whole["if"], whole["overall"], None)


def _stop_before_the_last_response(row):
    graded = row / "smollm2_if.jsonl"
    graded.write_text("".join(graded.read_text().splitlines(keepends=True)[:-1]))


def test_a_run_with_scores_is_trained_again_only_for_more_steps(evaluated, run, tmp_path, monkeypatch):
    out = shutil.copytree(evaluated, tmp_path / "study", ignore=shutil.ignore_patterns("checkpoints"))
    asked = []
    monkeypatch.setattr(comparison_stages, "side_by_side", lambda names, *_: asked.extend(names))
    names = ("multicap", "trust", "response-level")
    assert run(out, "--stage", "distil", *only(*names)).exit_code == 0
    assert asked == ["multicap/trust/seed-1", "multicap/response-level/seed-0"]
    asked.clear()
    assert run(out, "--stage", "distil", "distil.steps=3", *only(*names)).exit_code == 0
    assert TRUST.name in asked
    monkeypatch.setattr(Comparison, "train", lambda _, cell, __: pytest.fail(f"{cell.name} is trained again"))
    result = run(out, "--stage", "distil", *only(TRUST.name))
    assert result.exit_code == 0 and str(TRUST.run(out).path) in result.stdout
    asked.clear()
    shutil.rmtree(UNIFORM.run(out).path)  # as the message says
    assert run(out, "--stage", "distil", *only("multicap", "uniform")).exit_code == 0
    assert asked == [UNIFORM.name, "multicap/uniform/seed-1"]
    result = run(out, "--stage", "evaluate", *only("multicap"))
    assert TRUST.name in result.stdout and UNIFORM.name not in result.stdout  # the weights of one are not here


@pytest.mark.parametrize("setting", ["distil.batch_size=2", "distil.steps=1", "distil.learning_rate=1e-3"])
def test_runs_of_another_size_or_rate_do_not_join_a_comparison(trained, run, setting):
    result = run(trained, "--stage", "distil", setting, *only("multicap/trust/seed-1"))
    assert result.exit_code == 1
    assert "/runs/multicap/" in result.stderr and "--out" in result.stderr


def test_one_run_can_be_asked_for_first(base, run, tmp_path, monkeypatch):
    out = shutil.copytree(base, tmp_path / "study")
    asked = []
    monkeypatch.setattr(Comparison, "train", lambda _, cell, __: asked.append(cell))
    assert run(out, "--stage", "distil", *only(TRUST.name)).exit_code == 0
    assert asked == [TRUST] and (out / "prompts" / "multicap" / "card.json").is_file()


def test_the_student_with_all_weights_calibrates_for_itself(tmp_path):
    """The diagnosis read the base in another precision, so its calibration would be refused."""
    comparison = Comparison(tmp_path, Settings(), {})
    path = RunDirectory(tmp_path / "diagnosis" / "singlecap").calibration
    path.parent.mkdir(parents=True)
    path.touch()
    recipes = [comparison.recipe_of(Cell("singlecap", method, 0)) for method in ("trust", "full-weights")]
    assert [recipe.calibration for recipe in recipes] == [path, None]


def test_data_that_are_not_there_are_told_at_once(run, tmp_path):
    result = run(tmp_path, "--stage", "evaluate", "--data", f"svamp={tmp_path / 'nowhere.json'}")
    assert result.exit_code == 1 and "svamp" in result.stderr and "nowhere.json" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_on_a_cpu_students_train_in_bfloat16_if_it_has_products_in_it(has_bfloat16, monkeypatch, tmp_path):
    for device in (torch.cuda, torch.accelerator):
        monkeypatch.setattr(device, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bfloat16)
    training = Comparison(tmp_path, Settings(), {}).recipe_of(TRUST).training
    assert training.get("bf16", False) == has_bfloat16
    assert (training.get("model_init_kwargs") == {"dtype": "bfloat16"}) == has_bfloat16


@pytest.mark.parametrize("name", ["multicap/routed/seed-0", "multicap/routed", "singlecap/trust/seed-9", "single"])
def test_a_name_that_is_no_run_is_refused(name, run, tmp_path):
    result = run(tmp_path, "--stage", "distil", "--only", name)
    assert result.exit_code == 1
    assert name in result.stderr


@pytest.mark.parametrize(
    ("stage", "name"), [("distil", "math"), ("distil", "lr-0.0002"), ("specialists", "trust"), ("results", "trust")]
)
def test_a_name_that_the_stage_would_ignore_is_refused(stage, name, run, tmp_path):
    result = run(tmp_path, "--stage", stage, "--only", name)
    assert result.exit_code == 1
    assert name in result.stderr and stage in result.stderr


def test_a_sets_method_names_all_its_seeds(trained, run, monkeypatch):
    begun, asked = [], []
    monkeypatch.setattr(comparison_stages, "side_by_side", lambda names, *_: begun.extend(names))
    rule = TRUST.name.rpartition("/")[0]
    assert run(trained, "--stage", "distil", "--only", rule).exit_code == 0
    assert begun == [replace(TRUST, seed=1).name]  # seed 0 is trained
    monkeypatch.setattr(RowScores, "is_evaluated", lambda self, row, part: asked.append(row) or False)
    assert run(trained, "--stage", "evaluate", *only(rule, TRUST.name)).exit_code == 0
    assert TRUST in asked and replace(TRUST, seed=1) not in asked  # which has no weights


def test_a_missing_specialist_is_named(base, run, tmp_path):
    out = shutil.copytree(base, tmp_path / "study")
    shutil.rmtree(out / "adapters" / "math")
    result = run(out, "--stage", "distil")
    assert result.exit_code == 1
    assert "math" in result.stderr
