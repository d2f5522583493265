"""A user's day at the command line, on small real checkpoints."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import small_runs
import tiny
from command import run
from transformers import AutoModelForCausalLM, AutoTokenizer

from trustmopd import calibrate_recipe, evaluate_recipe, load_recipe, train_recipe
from trustmopd.evaluation.of_recipe import EvaluationOptions


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    return small_runs.recipe(folder, small_runs.checkpoints(folder), {"record_allocation_every": 2})


@pytest.mark.unit
def test_help_has_an_example_for_every_verb_and_needs_no_torch() -> None:
    for verb in ("train", "calibrate", "diagnose", "merge"):
        assert f": trustmopd {verb} " in run(verb, "--help").partition("Example")[2]
    script = "import sys, trustmopd.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_what_the_command_line_does_python_does(recipe: Path, tmp_path: Path) -> None:
    rows = [{"id": str(i), "prompt": f"{i} + 1?", "answer": i + 1} for i in range(2)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_recipe(recipe, [f"output={tmp_path / 'run'}", "training.max_steps=2", "seeds=[3, 4]"])
    calls: list[tuple[str, int]] = []
    found = calibrate_recipe(loaded)
    assert found is not None and list(found.mu) == ["math", "code", "if"]
    trained = train_recipe(
        loaded,
        on_start=lambda run: calls.append(("start", run.seed)),
        on_end=lambda run: calls.append(("end", run.seed)),
    )
    assert calls == [("start", 3), ("end", 3), ("start", 4), ("end", 4)]
    assert [(run.seed, run.began_at, run.step) for run in trained] == [(3, None, 2), (4, None, 2)]
    assert all(run.student is not None and run.student.name == "checkpoint-2" for run in trained)
    with pytest.raises(ValueError, match="seed-3"):
        train_recipe(loaded)
    assert [run.began_at for run in train_recipe(loaded, resume=True)] == [2, 2]
    options = EvaluationOptions([str(tmp_path / "sums.jsonl")], sampling={"max_new_tokens": 4, "temperature": 0.0})
    evaluated = evaluate_recipe(loaded, options=options, only=["initial", "tiny"])
    assert (evaluated.folder, evaluated.benchmarks) == (tmp_path / "run" / "evaluation", ["sums"])
    for each in trained:
        scores = json.loads((each.run.path / "evaluation" / "scores.json").read_text())
        assert scores["tiny"]["checkpoint"] == "checkpoint-2"


def test_dry_run_says_what_would_happen_and_writes_nothing(recipe: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    said = run("train", recipe, f"output={output}", "allocation.rule=uniform", "--dry-run")
    assert "all checks passed" in said
    assert "4 steps of 8 prompts (4 × 2 accumulation)" in said
    assert "not loaded: this rule needs none" in said
    assert "GiB at the peak of a step" in said and "fits in" in said
    assert not output.exists()


def test_dry_run_warns_of_memory_that_does_not_suffice_and_its_title_does_not_hide_it(
    recipe: Path, tmp_path: Path
) -> None:
    student = shutil.copytree(recipe.parent / "base", tmp_path / "student")
    config = json.loads((student / "config.json").read_text())
    large = {"hidden_size": 2**14, "intermediate_size": 2**21}
    (student / "config.json").write_text(json.dumps(config | large))  # terabytes with its optimizer
    with pytest.warns(UserWarning, match="trustmopd plan RECIPE --gpus 1 --memory"):
        said = run("train", recipe, f"student={student}", f"output={tmp_path / 'run'}", "--dry-run")
    title, _, table = said.partition("┏")
    assert "memory" in title and "does not fit" in table and "e+" not in table


def test_dry_run_fails_where_the_run_would(recipe: Path, tmp_path: Path) -> None:
    tiny.save(tiny.model(5), tmp_path / "other", tiny.tokenizer(template="{{ messages }}"))
    said = run("train", recipe, f"teachers.code={tmp_path / 'other'}", "--dry-run", code=1)
    assert "teacher 'code'" in said and "{{ messages }}" in said and "allow_template_mismatch" in said


def test_train_leaves_a_run_directory_and_a_student_that_loads(recipe: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    said = run("train", recipe, f"output={output}", "seeds=[0, 1]")
    assert "Trained to step 4" in said
    for seed in (0, 1):
        folder = output / f"seed-{seed}"
        files = {path.name for path in folder.iterdir()}
        assert files >= {
            "recipe.yaml",
            "manifest.json",
            "calibration.json",
            "metrics.jsonl",
            "allocation",
            "checkpoints",
        }
        student = AutoModelForCausalLM.from_pretrained(folder / "checkpoints" / "checkpoint-4")
        assert student.config.vocab_size == len(AutoTokenizer.from_pretrained(folder / "checkpoints" / "checkpoint-4"))
    mu = [json.loads((output / f"seed-{seed}" / "calibration.json").read_text())["mu"] for seed in (0, 1)]
    assert mu[0] == mu[1]  # measured once, used by all seeds
    again = run("train", recipe, f"output={output}", "seeds=[0, 1]", code=1)
    assert "--resume" in again  # an earlier run is never overwritten
    run("train", recipe, f"output={output}", "seeds=[0, 1]", "--resume")
    steps = [json.loads(line)["step"] for line in (output / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    assert max(steps) == 4  # finished: not one step more


def test_a_prompt_file_of_conversations_and_plain_texts_trains(recipe: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (recipe.parent / "prompts.jsonl").read_text().splitlines()]
    for row in rows[1::2]:
        row["prompt"] = row["prompt"][0]["content"]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    change = [f"prompts.path={tmp_path / 'mixed.jsonl'}", f"output={tmp_path / 'run'}", "training.max_steps=2"]
    for options in (["--dry-run"], []):
        with pytest.warns(UserWarning, match="12 of 24"):
            run("train", recipe, *change, *options)
    assert (tmp_path / "run" / "checkpoints" / "checkpoint-2" / "manifest.json").is_file()


def test_calibrate_prints_mu_and_train_uses_it(recipe: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    said = run("calibrate", recipe, f"output={output}")
    saved = json.loads((output / "calibration.json").read_text())
    assert all(f"{saved['mu'][name]:.4g}" in said for name in ("math", "code", "if"))
    stamp = (output / "calibration.json").stat().st_mtime_ns
    assert "Calibrating" not in run("train", recipe, f"output={output}")
    assert json.loads((output / "calibration.json").read_text()) == saved
    assert (output / "calibration.json").stat().st_mtime_ns >= stamp
    assert "uses no calibrated scores" in run(
        "calibrate", recipe, f"output={tmp_path / 'u'}", "allocation.rule=uniform"
    )


def test_diagnose_says_in_a_sentence_whether_the_pool_separates(recipe: Path, tmp_path: Path) -> None:
    said = run("diagnose", recipe, f"output={tmp_path / 'run'}", "--rollouts", "4")
    found = json.loads((tmp_path / "run" / "diagnosis.json").read_text())
    assert " ".join(found["verdict"].split()) in said
    assert [domain["domain"] for domain in found["domains"]] == ["math", "code", "if"]
    assert all(domain["rollouts"] == 4 for domain in found["domains"])


def test_diagnose_judges_by_reference_where_teachers_grew_from_two_models(recipe: Path, tmp_path: Path) -> None:
    """`code` and `if` from a second base, of another size. The common reference is the student itself."""
    base = tiny.model(5, hidden=48, layers=3)
    second = tiny.save(base, tmp_path / "second")
    grown = {name: tiny.save(tiny.specialist(base, seed), tmp_path / name) for seed, name in ((2, "code"), (3, "if"))}
    own = [f"teachers.{name}={{model: {path}, reference: {second}}}" for name, path in grown.items()]
    said = run("diagnose", recipe, f"output={tmp_path / 'run'}", *own, "--rollouts", "4")
    found = json.loads((tmp_path / "run" / "diagnosis.json").read_text())
    student, other = found["references"]
    assert (student["teachers"], other["teachers"]) == (["math"], ["code", "if"])
    assert student["distance"] == pytest.approx(0, abs=1e-6) and other["distance"] > 0.1
    assert other["source"] == str(second) and f"{other['distance']:.3f}" in said
    assert all(each["source"] in found["verdict"] and each["verdict"] in found["verdict"] for each in (student, other))
    assert found["separates"] is not True or (student["separates"] and other["separates"])


def test_merge_writes_a_checkpoint_that_loads(recipe: Path, tmp_path: Path) -> None:
    run("merge", recipe, "--out", tmp_path / "soup")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "soup").config.model_type == "llama"
    assert "Would average 3 checkpoints" in run("merge", recipe, "--dry-run")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.num_candidatse=3", ["training.num_candidatse", "Did you mean `num_candidates`?"]),
        ("training.num_candidates=1000", ["num_candidates = 1000", "vocabulary of 100"]),
        ("prompts.path=nowhere.jsonl", ["prompts: nowhere.jsonl does not exist", "Give a file, a folder, or"]),
        ("student=nowhere", ["the student", "nowhere", "Check the path or Hub id"]),
        ("peft={rank: 4}", ["peft", "LoraConfig"]),
        ("calibration_path=old.json", ["calibration_path", "`calibration`"]),
        ("training.calibration_path=old.json", ["training.calibration_path", "`calibration`"]),
        ("training.calibration=old.json", ["training.calibration", "`calibration`"]),
    ],
)
def test_a_slip_is_one_message_and_leaves_nothing_behind(
    recipe: Path, tmp_path: Path, override: str, words: list[str]
) -> None:
    for dry_run in ([], ["--dry-run"]):
        said = run("train", recipe, f"output={tmp_path / 'run'}", override, *dry_run, code=1)
        assert all(word in said for word in words), said
        assert "Traceback" not in said
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("saved", [True, False])
def test_ctrl_c_keeps_whole_checkpoints_and_says_how_to_go_on(recipe: Path, tmp_path: Path, saved: bool) -> None:
    output = tmp_path / "run"
    awaited = output / ("checkpoints/checkpoint-2/manifest.json" if saved else "metrics.jsonl")
    command = [sys.executable, "-m", "trustmopd", "train", str(recipe), f"output={output}"]
    process = subprocess.Popen(
        [*command, "training.max_steps=500", f"training.save_steps={2 if saved else 500}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # ignored by what runs in the background
    )
    try:
        deadline = time.monotonic() + 120
        while not awaited.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said[-2000:]
    assert (f"Continue with: trustmopd train {recipe}" in said, "--resume" in said) == (saved, saved)
    assert ("No checkpoint" in said) == (not saved)
    assert "Traceback" not in said


def test_a_first_checkpoint_that_cannot_be_written_leaves_nothing_to_continue_from(
    recipe: Path, tmp_path: Path
) -> None:
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2**15, 2**15))  # bytes of a file
    command = [sys.executable, "-m", "trustmopd", "train", str(recipe), f"output={tmp_path / 'run'}"]
    ended = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, check=False)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert str(tmp_path / "run" / "checkpoints" / "checkpoint-2") in ended.stderr and "disk space" in ended.stderr
    assert "No checkpoint" in ended.stderr and "--resume" not in ended.stderr
