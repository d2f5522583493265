"""Accuracy while training: what is graded, that nothing else changes, and the best checkpoint."""

import json
from pathlib import Path

import pytest
import small_runs
import tiny
import yaml

from trustmopd import TrustMOPDConfig
from trustmopd.recipe import RecipeError, load_recipe
from trustmopd.report.figures.watch_figures import draw_watched
from trustmopd.report.readers.run import open_run
from trustmopd.report.statistics.comparison import compare
from trustmopd.report.statistics.summary import summarise_run
from trustmopd.report.tables.watch_tables import watched_table
from trustmopd.training.dry_run import dry_run
from trustmopd.training.stages import train_recipe

#: Graders of random responses: a share of letters changes with every step.
GRADERS = """
import os

def never(row, response):
    return False

def letters(row, response):
    return sum(map(str.isalpha, response)) / 6

def fails(row, response):
    if row["id"] == "91":
        raise RuntimeError("no")
    return float("nan") if row["id"] == "92" else 1.0
"""


@pytest.fixture
def held_out(tmp_path):
    """A watched file, by the name of its grader."""
    (tmp_path / "mine.py").write_text(GRADERS)

    def file(grader="letters"):
        path = tmp_path / "sums.jsonl"
        rows = [{"prompt": f"{n} + {n}", "id": str(n)} for n in range(90, 96)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {"path": str(path), "grader": f"{tmp_path / 'mine.py'}:{grader}"}

    return file


def answered(folder, count=24):
    """Prompts of which every other one carries an answer."""
    rows = tiny.prompts(count).to_list()
    lines = [row | {"answer": str(n), "grader": "contains"} if n % 2 else row for n, row in enumerate(rows)]
    (folder / "answered.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"path": str(folder / "answered.jsonl")}


def lines_of(run):
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def learnt(run):
    """What a step leaves behind that depends neither on the clock nor on what is watched."""
    aside = ("seconds/", "memory/", "watch", "step_time")
    return [
        {name: value for name, value in line.items() if not name.startswith(aside)} for line in small_runs.steps_of(run)
    ]


def scores_of(run):
    """By which the best checkpoint is chosen, by step."""
    return {line["step"]: line["watch_score"] for line in lines_of(run) if line["step"] and "watch_score" in line}


def trained(folder, models, watch=None, **fields):
    folder.mkdir(exist_ok=True)
    path = small_runs.recipe(folder, models, {"max_steps": 4, **({"watch": watch} if watch else {})}, **fields)
    train_recipe(load_recipe(path))
    return folder / "run"


@pytest.fixture
def unwatched(tmp_path, checkpoints):
    return trained(tmp_path / "plain", checkpoints, prompts=answered(tmp_path))


def test_watching_changes_no_digit_of_training(tmp_path, checkpoints, held_out, unwatched):
    watch = {"benchmarks": [held_out()], "every": 3, "prompts": 4, "save_best": True}
    run = trained(tmp_path / "watched", checkpoints, watch, prompts=answered(tmp_path))
    assert learnt(run) == learnt(unwatched)
    scored = [line for line in lines_of(run) if "watch/sums" in line]
    assert [line["step"] for line in scored] == [0, 3, 4]
    assert all(line["watch_prompts/sums"] == 4 for line in scored)
    assert all(line["watch_score"] == line["watch/sums"] == line["watch/sums/sums"] for line in scored)
    steps = small_runs.steps_of(run)
    assert all("watch_rollouts" in line and line["watch_prompts/rollouts"] < 8 for line in steps)
    assert sum(line["watch_prompts/rollouts"] for line in steps) == sum(
        line.get(f"watch_prompts/rollouts/{domain}", 0) for line in steps for domain in ("math", "code", "if")
    )
    assert all(line["seconds/watch"] > 0 for line in steps)
    found = summarise_run(open_run(run))
    assert {kind: {*curves} for kind, curves in found.curves.items()} == {
        "held-out prompts": {"sums"},
        "rollouts": {"math", "code", "if"},
    }
    assert [(point.step, point.score) for point in found.curves["held-out prompts"]["sums"]] == [
        (line["step"], pytest.approx(line["watch/sums"])) for line in scored
    ]
    points = [point for curves in found.curves.values() for curve in curves.values() for point in curve]
    assert all(0 <= point.low <= point.score <= point.high <= 1 for point in points)
    (row,) = watched_table(compare([found])).table.rows
    assert "step 4" in row[-1]
    assert draw_watched(compare([found]), tmp_path / "watched-figure") is not None
    assert (tmp_path / "watched-figure.svg").stat().st_size


def test_a_grader_that_fails_costs_its_rows_and_not_the_run(tmp_path, checkpoints, held_out):
    run = trained(tmp_path / "failing", checkpoints, {"benchmarks": [held_out("fails")], "every": 4})
    scored = [line for line in lines_of(run) if "watch/sums" in line]
    counted = [(line["watch/sums"], line["watch_prompts/sums"], line["watch_lost"]) for line in scored]
    assert counted == [(1.0, 4, 2)] * 2


def test_the_best_checkpoint_is_kept_and_a_resumed_run_goes_on_with_it(tmp_path, checkpoints, held_out):
    watch = {"benchmarks": [held_out()], "every": 1, "prompts": 6, "save_best": True}
    settings = {"save_steps": 3, "save_total_limit": 2, "learning_rate": 0.05, "logging_steps": 3, "watch": watch}
    (tmp_path / "whole").mkdir()
    whole = small_runs.recipe(tmp_path / "whole", checkpoints, {"max_steps": 6, **settings})
    train_recipe(load_recipe(whole))
    run = tmp_path / "whole/run"
    scores = scores_of(run)
    best = max(scores, key=lambda step: (scores[step], -step))
    state = json.loads((run / "checkpoints/checkpoint-6/trainer_state.json").read_text())
    assert (state["best_metric"], state["best_global_step"]) == (scores[best], best)
    kept = {int(path.name.partition("-")[2]) for path in (run / "checkpoints").glob("checkpoint-*")}
    assert {best, 6} <= kept and len(kept) <= 3
    assert f"best after step {best} " in (run / "checkpoints/README.md").read_text()

    (tmp_path / "parts").mkdir()
    parts = small_runs.recipe(tmp_path / "parts", checkpoints, {"max_steps": 3, **settings})
    train_recipe(load_recipe(parts))
    train_recipe(load_recipe(parts, ["training.max_steps=6"]), resume=True)
    resumed = tmp_path / "parts/run"
    assert scores_of(resumed) == scores and learnt(resumed) == learnt(run)
    state = json.loads((resumed / "checkpoints/checkpoint-6/trainer_state.json").read_text())
    assert (state["best_metric"], state["best_global_step"]) == (scores[best], best)


def test_the_best_is_kept_where_no_response_is_right(tmp_path, checkpoints, held_out):
    """What the terminal names as the best checkpoint is there."""
    watch = {"benchmarks": [held_out("never")], "every": 1, "prompts": 2, "save_best": True}
    run = trained(tmp_path / "never", checkpoints, watch)
    assert {*scores_of(run).values()} == {0.0}
    assert (run / "checkpoints/checkpoint-1").is_dir() and (run / "checkpoints/checkpoint-4").is_dir()
    assert "at first 0.0%, best after step 1 " in (run / "checkpoints/README.md").read_text()


@pytest.mark.unit
def test_a_benchmark_is_watched_or_evaluated(tmp_path, held_out):
    file = held_out()
    for evaluated in (file, file["path"], f"{tmp_path}/./sums.jsonl"):
        path = small_runs.recipe(
            tmp_path,
            {"base": "b", "math": "m"},
            {"watch": {"benchmarks": [file]}},
            evaluation={"benchmarks": [evaluated]},
        )
        with pytest.raises(RecipeError, match=r"training\.watch"):
            load_recipe(path)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"evaluation": {"benchmarks": ["gsm8k"]}}))
    load_recipe(path)


@pytest.mark.unit
@pytest.mark.parametrize("watch", [True, ["gsm8k"], {"benchmarks": None}, {"benchmarks": [3]}])
def test_slips_in_a_recipe(tmp_path, watch):
    path = small_runs.recipe(tmp_path, {"base": "b", "math": "m"}, {"watch": watch})
    with pytest.raises(RecipeError, match=r"training\.watch"):
        load_recipe(path)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("watch", "others", "named"),
    [
        ({"every": 0}, {}, "watch: every"),
        ("gsm8k", {}, "watch: 'gsm8k'.*benchmarks"),
        (["gsm8k"], {}, "watch: .'gsm8k'.*benchmarks"),
        ({"benchmark": ["gsm8k"]}, {}, "benchmarks"),
        ({"benchmarks": ["gsm9k"]}, {}, "gsm8k"),
        ({"save_best": True}, {}, "save_best"),
        ({"benchmarks": ["gsm8k"], "save_best": True}, {"save_strategy": "no"}, "save_strategy"),
        ({"benchmarks": ["gsm8k"], "save_best": True}, {"save_total_limit": 1}, "save_total_limit"),
        ({"benchmarks": ["gsm8k"], "save_best": True}, {"metric_for_best_model": "loss"}, "metric_for_best_model"),
    ],
)
def test_slips(tmp_path, watch, others, named):
    with pytest.raises(ValueError, match=named):
        TrustMOPDConfig(output_dir=str(tmp_path), use_cpu=True, watch=watch, **others)


def test_watched_prompts_are_checked_before_models_are_loaded(tmp_path, checkpoints, held_out):
    from trustmopd.training.prepare import prepare

    path = small_runs.recipe(tmp_path, checkpoints, {"watch": {}})
    with pytest.raises(ValueError, match="benchmarks"):  # and the prompts carry no answers
        prepare(load_recipe(path)).check()
    path = small_runs.recipe(tmp_path, checkpoints, {"watch": {"benchmarks": [str(tmp_path / "none.jsonl")]}})
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"):
        prepare(load_recipe(path)).check()
    (tmp_path / "known.jsonl").write_text('{"prompt": "0 + 0", "answer": "0"}\n{"prompt": "8 + 99", "answer": "107"}\n')
    path = small_runs.recipe(tmp_path, checkpoints, {"watch": {"benchmarks": [str(tmp_path / "known.jsonl")]}})
    with pytest.warns(UserWarning, match="1 of 2 prompts of known are trained on"):
        prepared = prepare(load_recipe(path))
        assert len(prepared.ingredients.held_out) == 2
    told = dry_run(prepared).topics["watch"]
    assert "2 prompts of known" in told and "every 20 steps" in told and "0 of 24" in told
