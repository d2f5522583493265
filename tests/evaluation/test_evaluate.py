"""A user's day: evaluate, be interrupted, go on, and find everything written once."""

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
from typing import Any

import pytest
import tiny
import yaml
from command import run
from evaluated import METHOD, Echo, sums

from trustmopd.evaluation.benchmarks import load_benchmarks
from trustmopd.evaluation.entries import Entry
from trustmopd.evaluation.evaluate import evaluate_checkpoint
from trustmopd.evaluation.journal import GRADED, Journal, read_lines
from trustmopd.evaluation.read_graded import collect
from trustmopd.evaluation.sampling import Sampling
from trustmopd.recipe import TeacherSource


def test_an_interrupted_evaluation_goes_on_and_samples_and_grades_nothing_twice(world: Path, tmp_path: Path) -> None:
    sampling = Sampling(samples=3)
    first, second = Echo(stop_after=7), Echo()
    with pytest.raises(KeyboardInterrupt):
        evaluate_checkpoint(METHOD, tmp_path, sums(world), sampling, lambda: first)
    graded = tmp_path / "math_sums.jsonl"
    lines = graded.read_bytes().splitlines(keepends=True)[:3]  # a busy machine may have graded fewer by then
    graded.write_bytes(b"".join(lines) + b'{"id": "half a li')  # killed while it wrote
    evaluate_checkpoint(METHOD, tmp_path, sums(world), sampling, lambda: second)
    everything = [(f"math{i}", sample) for i in range(4) for sample in range(3)]
    assert first.asked + second.asked == everything
    entries, _ = read_lines(graded, GRADED)
    assert sorted((entry["id"], entry["sample"]) for entry in entries) == everything
    assert [json.dumps(entry, ensure_ascii=False) for entry in entries[: len(lines)]] == [
        line.decode().strip() for line in lines
    ]
    found = {(entry["id"], entry["sample"]): entry for entry in entries}
    assert found["math1", 1]["score"] == 1 and found["math1", 1]["extracted"] == "2."
    assert found["math1", 0]["score"] == 0 and found["math0", 2]["truncated"] is True
    evaluate_checkpoint(METHOD, tmp_path, sums(world), sampling, lambda: pytest.fail("nothing is left to sample"))
    graded.unlink()  # graded anew, without a model
    evaluate_checkpoint(METHOD, tmp_path, sums(world), sampling, lambda: pytest.fail("nothing is left to sample"))
    assert len(read_lines(graded, GRADED)[0]) == 12


def test_a_folder_holds_one_checkpoint_and_one_way_of_sampling(world: Path, tmp_path: Path) -> None:
    evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Echo)
    more = Echo()
    evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(samples=2), lambda: more)
    assert more.asked == [(f"math{i}", 1) for i in range(4)]
    with pytest.raises(ValueError, match=r"temperature = 0\.6.*1\.0"):
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(temperature=1.0), Echo)
    other = Entry("m", TeacherSource(model="elsewhere"), "m")
    with pytest.raises(ValueError, match="model = 'somewhere'.*'elsewhere'"):
        evaluate_checkpoint(other, tmp_path, sums(world), Sampling(), Echo)


def test_a_copy_of_a_checkpoint_is_that_checkpoint_and_a_changed_one_of_the_same_size_is_not(
    world: Path, tmp_path: Path
) -> None:
    def evaluate(model: Path, sampler: Any) -> None:
        method = Entry("student", TeacherSource(model=str(model)), "student")
        evaluate_checkpoint(method, tmp_path / "out", sums(world), Sampling(), sampler)

    evaluate(world / "student", Echo)
    copy = shutil.copytree(world / "student", tmp_path / "copy", copy_function=shutil.copyfile)  # with new times
    evaluate(copy, lambda: pytest.fail("nothing is left to sample"))
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ValueError, match="files"):
        evaluate(copy, Echo)


def test_a_folder_holds_responses_of_one_engine(world: Path, tmp_path: Path) -> None:
    asked = ["evaluate", world / "student", "--benchmarks", world / "math_sums.jsonl", "--max-new-tokens", 4]
    asked += ["--out", tmp_path]
    run(*asked, "--limit", 2)
    record, responses = tmp_path / "run.json", tmp_path / "math_sums.responses.jsonl"
    about, before = json.loads(record.read_text()), responses.read_bytes()
    assert about["engine"] == "transformers"
    record.write_text(json.dumps(about | {"engine": "vllm"}))
    said = run(*asked, code=1)
    assert "'vllm'" in said and "'transformers'" in said and "--out" in said and responses.read_bytes() == before
    del about["engine"]  # as earlier releases wrote it: any engine may go on
    record.write_text(json.dumps(about))
    run("scores", tmp_path)
    run(*asked)
    assert responses.read_bytes().startswith(before) and len(responses.read_text().splitlines()) == 4
    assert json.loads(record.read_text())["engine"] == "transformers"


def test_a_removed_line_makes_no_second_entry(world: Path, tmp_path: Path) -> None:
    evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Echo)
    for name in ("math_sums.jsonl", "math_sums.responses.jsonl"):
        journal = tmp_path / name
        journal.write_text("".join(journal.read_text().splitlines(keepends=True)[1:]))
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), lambda: pytest.fail("it was sampled"))
    assert sorted(entry["id"] for entry in read_lines(tmp_path / "math_sums.jsonl", GRADED)[0]) == [
        f"math{i}" for i in range(4)
    ]


def test_two_evaluations_do_not_write_to_one_folder(world: Path, tmp_path: Path) -> None:
    class Meanwhile(Echo):
        def sample(self, requests: Any, sampling: Sampling) -> Any:
            with pytest.raises(OSError, match=str(tmp_path)):
                evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Echo)
            yield from super().sample(requests, sampling)

    evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Meanwhile)
    assert len(read_lines(tmp_path / "math_sums.jsonl", GRADED)[0]) == 4


def test_asking_for_less_is_said_and_scores_just_that(world: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(samples=3), lambda: Echo(stop_after=7))
    less = load_benchmarks([str(world / "math_sums.jsonl")], {}, limit=2)
    with pytest.warns(UserWarning, match="4 prompts × 3 samples.*2 × 2"):
        evaluate_checkpoint(METHOD, tmp_path, less, Sampling(samples=2), lambda: pytest.fail("it was sampled"))
    answers = collect([tmp_path])[0]["m"][0]["math_sums"]
    assert answers.by_prompt == {"math0": 0.5, "math1": 0.5} and answers.facts["responses"] == 4
    evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(samples=3), Echo)
    assert collect([tmp_path])[0]["m"][0]["math_sums"].facts["responses"] == 12


def test_an_unfinished_benchmark_does_not_hide_the_one_asked_for(world: Path, tmp_path: Path) -> None:
    method = Entry("student", TeacherSource(model=str(world / "student")), "student")
    sampling = Sampling(max_new_tokens=4)
    with pytest.raises(KeyboardInterrupt):
        evaluate_checkpoint(method, tmp_path, sums(world), sampling, lambda: Echo(stop_after=1))
    files = f"{world / 'code_sums.jsonl'}, {world / 'if_sums.jsonl'}"
    run("evaluate", world / "student", "--benchmarks", files, "--max-new-tokens", 4, "--out", tmp_path)
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert list(scores["student"]["benchmarks"]) == ["code_sums", "if_sums"]
    assert "math_sums" in run("scores", tmp_path)


def test_a_changed_prompt_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": "1 + 1?", "answer": 2}))
    evaluate_checkpoint(METHOD, tmp_path / "out", load_benchmarks([str(path)], {}), Sampling(), Echo)
    path.write_text(json.dumps({"id": "a", "prompt": "2 + 1?", "answer": 3}))
    with pytest.raises(ValueError, match="prompt 'a'.*--out"):
        evaluate_checkpoint(METHOD, tmp_path / "out", load_benchmarks([str(path)], {}), Sampling(), Echo)


def test_a_full_disk_stops_with_whole_lines(tmp_path: Path) -> None:
    """By the file-size limit, which also fails in the middle of a line."""
    path = tmp_path / "journal.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal = Journal(path, {"n": int})
    journal.append({"n": 0})
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
        with pytest.raises(OSError, match=str(path)):
            for n in range(1, 100):
                journal.append({"n": n})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    entries, whole = read_lines(path, {"n": int})
    assert whole == path.stat().st_size > 150
    assert [entry["n"] for entry in entries] == list(range(len(entries)))
    Journal(path, {"n": int}).append({"n": len(entries)})
    assert len(read_lines(path, {"n": int})[0]) == len(entries) + 1


def test_an_edited_journal_is_named_by_line(tmp_path: Path) -> None:
    (tmp_path / "j.jsonl").write_text('{"a": 1}\nnot json\n')
    with pytest.raises(ValueError, match=r"j.jsonl, line 2 .*Expecting value"):
        Journal(tmp_path / "j.jsonl", {"a": int})


@pytest.mark.parametrize("verb", ["evaluate", "scores"])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": None}, " id "),
        ({"id": 3}, " id "),
        ({"sample": None}, " sample "),
        ({"score": "1"}, " score "),
        ([1], ""),
    ],
)
def test_a_line_without_its_fields_is_named(world: Path, tmp_path: Path, verb: str, change: Any, field: str) -> None:
    method = Entry("student", TeacherSource(model=str(world / "student")), "student")
    evaluate_checkpoint(method, tmp_path, sums(world), Sampling(), Echo)
    journal = tmp_path / "math_sums.jsonl"
    lines = journal.read_text().splitlines()
    kept = {**json.loads(lines[2]), **change} if isinstance(change, dict) else change
    lines[2] = json.dumps({k: v for k, v in kept.items() if v is not None} if isinstance(kept, dict) else kept)
    journal.write_text("\n".join(lines) + "\n")
    arguments = ["--out", tmp_path, "--benchmarks", world / "math_sums.jsonl"]
    said = run(*(["evaluate", world / "student", *arguments] if verb == "evaluate" else ["scores", tmp_path]), code=1)
    assert "math_sums.jsonl, line 3 " in said and field in said


def test_a_table_of_several_folders_needs_a_place_of_its_own(world: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        method = Entry(name, TeacherSource(model=name), name)
        evaluate_checkpoint(method, tmp_path / name, sums(world), Sampling(), Echo)
        run("scores", tmp_path / name)
    before = (tmp_path / "a" / "scores.json").read_bytes()
    said = run("scores", tmp_path / "a", tmp_path / "b", code=1)
    assert "--out" in said
    said = run("scores", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "both")
    assert (tmp_path / "a" / "scores.json").read_bytes() == before
    assert {"a", "b"} < json.loads((tmp_path / "both" / "scores.json").read_text()).keys()


@pytest.mark.filterwarnings("ignore:benchmark")
def test_every_malformed_row_is_in_the_record(tmp_path: Path) -> None:
    rows = [{"id": "a", "prompt": "1 + 1?", "answer": 2}, *({"id": f"{i}", "prompt": "?"} for i in range(5))]
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, rows)))
    loaded = load_benchmarks([str(tmp_path / "set.jsonl")], {})
    evaluate_checkpoint(METHOD, tmp_path / "out", loaded, Sampling(), Echo)
    malformed = json.loads((tmp_path / "out" / "run.json").read_text())["benchmarks"]["set"]["malformed"]
    assert [each.rpartition("set.jsonl, ")[2] for each in malformed] == [
        f"line {i}: it has no answer" for i in range(2, 7)
    ]


def test_one_command_evaluates_every_row_of_a_recipe(world: Path, tmp_path: Path) -> None:
    said = run("evaluate", world / "recipe.yaml", "--out", tmp_path)
    summary = json.loads((tmp_path / "scores.json").read_text())
    assert summary.pop("schema_version") == 1
    teachers = ["teacher-math", "teacher-code", "teacher-if"]
    assert list(summary) == ["initial", *teachers, "routed-teachers", "parameter-average", "tiny"]
    assert summary["tiny"]["seeds"] == [0, 1]
    assert (world / "run" / "merged" / "config.json").exists()
    for domain in ("math", "code", "if"):
        assert summary["routed-teachers"][domain] == summary[f"teacher-{domain}"][domain]
    record = json.loads((tmp_path / "tiny" / "seed-1" / "run.json").read_text())
    assert record["model"].endswith("seed-1/checkpoints/checkpoint-10")  # the last whole one, by number
    entries = (tmp_path / "initial" / "math_sums.jsonl").read_text().splitlines()
    assert len(entries) == 8
    assert "scores.json" in said and "routed-teachers" in said
    handed = json.loads((world / "run" / "seed-1" / "evaluation" / "scores.json").read_text())
    assert handed["tiny"]["checkpoint"] == "checkpoint-10" and handed["tiny"]["seeds"] == [1]
    for suffix in (".md", ".csv", ".tex"):
        assert "parameter-average" in (tmp_path / "tables" / f"scores{suffix}").read_text()
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*_sums*.jsonl")}
    run("evaluate", world / "recipe.yaml", "--out", tmp_path)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert "initial" in run("scores", tmp_path, "--against", "parameter-average")
    difference = json.loads((tmp_path / "scores.json").read_text())["tiny"]["difference"]
    assert difference["against"] == "parameter-average" and difference["n"] == 2


def test_a_run_of_one_seed_knows_which_checkpoint_was_scored(world: Path, tmp_path: Path) -> None:
    for folder in ("checkpoint-2", "checkpoint-10"):
        shutil.copytree(world / "run/seed-0/checkpoints" / folder, tmp_path / "run/checkpoints" / folder)
    changes = ("seeds=[0]", f"output={tmp_path / 'run'}", "--benchmarks", world / "math_sums.jsonl")
    run("evaluate", world / "recipe.yaml", *changes)
    scores = json.loads((tmp_path / "run" / "evaluation" / "scores.json").read_text())
    assert scores["tiny"]["checkpoint"] == "checkpoint-10" and "teacher-math" in scores


def test_a_domain_without_a_teacher_of_its_name_is_told(world: Path, tmp_path: Path) -> None:
    rows = [{"id": f"{i}", "prompt": f"{i} + 1 =", "answer": i + 1, "domain": "sums"} for i in range(2)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = run("evaluate", world / "recipe.yaml", "--benchmarks", tmp_path / "own.jsonl", "--out", tmp_path / "out")
    assert "'sums'" in said and "math, code, if" in said
    assert "routed-teachers" not in json.loads((tmp_path / "out" / "scores.json").read_text())


def test_one_row_alone_and_an_untrained_seed(world: Path, tmp_path: Path) -> None:
    said = run("evaluate", world / "recipe.yaml", "seeds=[0, 7]", "--only", "tiny", "--out", tmp_path)
    assert "tiny, seed 7" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores.json", "tables", "tiny"]
    said = run("evaluate", world / "recipe.yaml", "--only", "teacher-art", "--out", tmp_path, code=1)
    assert "teacher-art" in said and "initial, teacher-math" in said


def test_a_checkpoint_alone_is_evaluated_with_files_in_the_folder_itself(world: Path, tmp_path: Path) -> None:
    adapter = tiny.adapter(tiny.model(0), tmp_path / "adapter", 3)
    recipe = yaml.safe_load((world / "recipe.yaml").read_text())
    recipe["teachers"]["math"] = {"adapter": str(adapter)}
    (tmp_path / "adapters.yaml").write_text(yaml.safe_dump(recipe))
    said = run("evaluate", tmp_path / "adapters.yaml", "--only", "teacher-math", "--out", tmp_path / "a")
    assert "teacher-math" in said
    arguments = ["--benchmarks", world / "math_sums.jsonl", "--max-new-tokens", 4, "--limit", 2]
    run("evaluate", world / "student", *arguments, "--out", tmp_path / "b")
    assert {path.name for path in (tmp_path / "b").iterdir()} == {
        *(".lock", "math_sums.jsonl", "math_sums.responses.jsonl", "run.json", "scores.json", "tables")
    }
    assert json.loads((tmp_path / "b" / "scores.json").read_text())["student"]["recovery"] is None


def test_ctrl_c_leaves_what_was_graded_and_the_same_command_goes_on(world: Path, tmp_path: Path) -> None:
    rows = [{"id": str(i), "prompt": f"{i}", "answer": i} for i in range(3000)]
    (tmp_path / "many.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "trustmopd", "evaluate", str(world / "student"), "--out", str(out)]
    command += ["--benchmarks", str(tmp_path / "many.jsonl"), "--max-new-tokens", "4", "--batch-size", "2"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # ignored by what runs in the background
    )
    graded = out / "many.jsonl"
    try:
        deadline = time.monotonic() + 120
        while not graded.exists() or graded.stat().st_size < 5000:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in said
    kept = graded.read_bytes()
    assert kept.endswith(b"\n") and 0 < len(kept.splitlines()) < 3000
    limit = len(kept.splitlines()) + 10
    with pytest.warns(UserWarning, match="3000 prompts"):
        run("evaluate", *command[4:], "--limit", limit)
    assert graded.read_bytes().startswith(kept)
