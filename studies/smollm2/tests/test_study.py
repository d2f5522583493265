"""The script at a tiny size: students of two rules, their scores, tables and report."""

import json
from pathlib import Path

import pytest
from bubblewrap import needs_sandbox

from studies.smollm2.__main__ import main
from trustmopd.evaluation.sandbox.sandbox import UNSANDBOXED
from trustmopd.prompts.prompt_set import load_prompts

ROOT = Path(__file__).parents[3]
TINY = (
    *("seeds=[0]", "training.max_steps=3", "training.global_batch_size=4", "training.per_device_train_batch_size=4"),
    *("training.num_candidates=8", "training.calibration_batches=1", "training.max_prompt_length=800"),
    *("training.max_completion_length=6", "training.use_cpu=true", "training.bf16=false"),
    *("training.cache_implementation=null", "training.model_init_kwargs=null", "peft.r=2"),
    *("evaluation.samples=1", "evaluation.max_new_tokens=6"),
)
ONLY = ("--only", "singlecap-trust", "--only", "multicap-uniform")


def run(study: Path, *words: str) -> None:
    main([*words, *TINY, "--out", str(study)])


@pytest.fixture(scope="module")
def distilled(study, tmp_path_factory):
    """Two students with all their scores. Random models write no function, so nothing of theirs is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv(UNSANDBOXED, "1")
        run(study, "base", "specialists", "prompts", "diagnose", "sweep", *ONLY)
        run(study, "distil", "evaluate", "mixed", "results", *ONLY)
    return study


def test_prompt_sets_are_screened_against_every_evaluation_set(study):
    for name in ("singlecap", "multicap"):
        card = json.loads((study / "prompts" / name / "card.json").read_text())
        assert set(card["comparison"]) == {"math", "code", "if", "svamp", "math+if", "code+if", "math+code"} | {
            "mbpp",
            "ifeval",
        }
    mixed = load_prompts(study / "prompts" / "multicap")
    assert {tuple(row["capabilities"]) for row in mixed if row["domain"] is None} == {
        ("math", "if"),
        ("code", "if"),
        ("math", "code"),
    }
    held_out = {
        json.loads(line)["prompt"]
        for file in (study / "prompts" / "evaluation").iterdir()
        for line in file.read_text().splitlines()
    }
    assert held_out.isdisjoint(row["prompt"][0]["content"] for row in mixed)


def test_students_of_two_recipes_share_the_rows_of_base_and_teachers(distilled):
    rows = json.loads((distilled / "evaluation" / "scores.json").read_text())
    assert {"initial", "teacher-math", "routed-teachers", "parameter-average"} < rows.keys()
    assert rows["singlecap-trust"]["benchmarks"].keys() == {"smollm2_math", "smollm2_code", "smollm2_if"}
    assert rows["multicap-uniform"]["seeds"] == [0]
    assert (distilled / "runs" / "singlecap" / "trust" / "evaluation" / "scores.json").is_file()


def test_mixed_prompts_have_scores_of_their_own(distilled):
    rows = json.loads((distilled / "mixed" / "scores.json").read_text())
    kinds = {"smollm2_math_if", "smollm2_code_if", "smollm2_math_code"}
    assert rows["singlecap-trust"]["benchmarks"].keys() == kinds
    of_the_run = json.loads((distilled / "runs" / "singlecap" / "trust" / "evaluation" / "scores.json").read_text())
    assert kinds.isdisjoint(of_the_run["singlecap-trust"]["benchmarks"])


def test_the_results_are_tables_and_a_report(distilled):
    page = (distilled / "results.md").read_text()
    assert "| singlecap-trust |" in page and "| smollm2_math_if |" in page.replace("|  |", "|")
    assert (distilled / "report.html").is_file()


def test_what_is_finished_is_not_done_again(distilled, monkeypatch):
    monkeypatch.chdir(ROOT)
    metrics = distilled / "runs" / "singlecap" / "trust" / "metrics.jsonl"
    before = metrics.read_text()
    run(distilled, "distil", "--only", "singlecap-trust")
    assert metrics.read_text() == before


@needs_sandbox
def test_public_benchmarks_are_asked_too(distilled, data, monkeypatch):
    pytest.importorskip("lm_eval")
    monkeypatch.chdir(ROOT)
    named = [part for name in ("mbpp", "ifeval") for part in ("--data", f"{name}={data[name]}")]
    run(distilled, "public", *named, "--only", "multicap-uniform")
    rows = json.loads((distilled / "public" / "scores.json").read_text())
    assert rows["multicap-uniform"]["benchmarks"].keys() == {"smollm2_svamp", "mbpp", "ifeval"}


@pytest.mark.parametrize("slip", [("distill",), ("distil", "--only", "singlecap")])
def test_a_name_that_is_none_is_named(slip, tmp_path):
    with pytest.raises(ValueError, match=slip[-1]):
        run(tmp_path, *slip)
