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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from typer.testing import CliRunner

from trustmopd.cli import app
from trustmopd.evaluation.answers import collect
from trustmopd.evaluation.evaluate import evaluate_checkpoint
from trustmopd.evaluation.journal import GRADED, Journal, read_entries
from trustmopd.evaluation.methods import Method
from trustmopd.evaluation.run_record import load_benchmarks
from trustmopd.evaluation.sampling import Reply, Request, Sampling, TransformersEngine, render, seed_of
from trustmopd.recipe import TeacherSource

THINKING = tiny.TEMPLATE.replace("assistant: {% endif %}", "assistant: <think>\n{% endif %}")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student, three specialists, small sets of their domains, a recipe, and two trained seeds."""
    folder = tmp_path_factory.mktemp("world")
    base = tiny.model(0)
    tiny.save(base, folder / "student")
    for seed, name in enumerate(("math", "code", "if"), start=1):
        tiny.save(tiny.specialist(base, seed), folder / name)
    for seed in (0, 1):
        for step in (2, 10):
            checkpoint = folder / f"run/seed-{seed}/checkpoints/checkpoint-{step}"
            tiny.save(tiny.specialist(base, 10 * step + seed), checkpoint)
            (checkpoint / "manifest.json").write_text("{}")
        (folder / f"run/seed-{seed}/checkpoints/checkpoint-11").mkdir()  # cut short: no manifest
    for domain in ("math", "code", "if"):
        rows = [{"id": f"{domain}{i}", "prompt": f"{i} + 1 =", "answer": i + 1, "domain": domain} for i in range(4)]
        (folder / f"{domain}_sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = {
        "name": "tiny",
        "student": str(folder / "student"),
        "teachers": {name: str(folder / name) for name in ("math", "code", "if")},
        "prompts": {"path": "unused.jsonl"},
        "evaluation": {
            "benchmarks": [str(folder / f"{domain}_sums.jsonl") for domain in ("math", "code", "if")],
            "max_new_tokens": 8,
            "samples": 2,
        },
        "seeds": [0, 1],
        "output": str(folder / "run"),
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    return folder


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


class Echo:
    """Answers with the sample's number, counts what it is asked, and stops when told to."""

    def __init__(self, stop_after: int = 10**9) -> None:
        self.asked: list[tuple[str, int]] = []
        self.stop_after = stop_after

    def sample(self, requests: Any, sampling: Sampling) -> Any:
        for request in requests:
            if len(self.asked) == self.stop_after:
                raise KeyboardInterrupt
            self.asked.append((request.id, request.sample))
            yield Reply(request, f"It is {request.sample + 1}.", 3, request.sample == 2, False, 0.1)


METHOD = Method("m", TeacherSource(model="somewhere"), "m")


def sums(world: Path) -> Any:
    return load_benchmarks([str(world / "math_sums.jsonl")], {})


def test_an_interrupted_evaluation_goes_on_and_samples_and_grades_nothing_twice(world: Path, tmp_path: Path) -> None:
    sampling = Sampling(samples=3)
    first, second = Echo(stop_after=7), Echo()
    with pytest.raises(KeyboardInterrupt):
        evaluate_checkpoint(METHOD, tmp_path, sums(world), sampling, lambda: first)
    graded = tmp_path / "math_sums.jsonl"
    lines = graded.read_bytes().splitlines(keepends=True)
    graded.write_bytes(b"".join(lines[:3]) + b'{"id": "half a li')  # killed while it wrote
    evaluate_checkpoint(METHOD, tmp_path, sums(world), sampling, lambda: second)
    everything = [(f"math{i}", sample) for i in range(4) for sample in range(3)]
    assert first.asked + second.asked == everything
    entries, _ = read_entries(graded, GRADED)
    assert sorted((entry["id"], entry["sample"]) for entry in entries) == everything
    assert [json.dumps(entry, ensure_ascii=False) for entry in entries[:3]] == [
        line.decode().strip() for line in lines[:3]
    ]
    found = {(entry["id"], entry["sample"]): entry for entry in entries}
    assert found["math1", 1]["score"] == 1 and found["math1", 1]["extracted"] == "2"
    assert found["math1", 0]["score"] == 0 and found["math0", 2]["truncated"] is True
    evaluate_checkpoint(METHOD, tmp_path, sums(world), sampling, lambda: pytest.fail("nothing is left to sample"))
    graded.unlink()  # graded anew, without a model
    evaluate_checkpoint(METHOD, tmp_path, sums(world), sampling, lambda: pytest.fail("nothing is left to sample"))
    assert len(read_entries(graded, GRADED)[0]) == 12


def test_a_folder_holds_one_checkpoint_and_one_way_of_sampling(world: Path, tmp_path: Path) -> None:
    evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Echo)
    more = Echo()
    evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(samples=2), lambda: more)
    assert more.asked == [(f"math{i}", 1) for i in range(4)]
    with pytest.raises(ValueError, match="temperature = 0.6, and now it is 1.0: they do not mix. Choose another --out"):
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(temperature=1.0), Echo)
    other = Method("m", TeacherSource(model="elsewhere"), "m")
    with pytest.raises(ValueError, match="model = 'somewhere'"):
        evaluate_checkpoint(other, tmp_path, sums(world), Sampling(), Echo)


def test_a_removed_line_makes_no_second_entry(world: Path, tmp_path: Path) -> None:
    evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Echo)
    for name in ("math_sums.jsonl", "math_sums.responses.jsonl"):
        journal = tmp_path / name
        journal.write_text("".join(journal.read_text().splitlines(keepends=True)[1:]))
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), lambda: pytest.fail("it was sampled"))
    assert sorted(entry["id"] for entry in read_entries(tmp_path / "math_sums.jsonl", GRADED)[0]) == [
        f"math{i}" for i in range(4)
    ]


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("name", ["mine.jsonl", "mine.responses.jsonl", "scores.json"])
@pytest.mark.parametrize("earlier", [False, True], ids=["new", "evaluated before"])
def test_a_set_in_the_folder_of_the_evaluation_is_not_written_over(
    world: Path, tmp_path: Path, name: str, end: str, earlier: bool
) -> None:
    if earlier:
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Echo)
    before = json.dumps({"id": "a", "prompt": "1 + 1?", "answer": 2}) + end
    (tmp_path / name).write_text(before)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    said = run(
        *("evaluate", world / "student", "--benchmarks", tmp_path / name, "--max-new-tokens", 4, "--out", tmp_path),
        code=1,
    )
    assert f"--out {tmp_path} would write over {tmp_path / name}, which no evaluation wrote; choose another" in said
    assert (tmp_path / name).read_text() == before
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize("given", ["svamp.jsonl", "."])
def test_a_local_copy_in_the_folder_of_the_evaluation_is_not_written_over(
    world: Path, tmp_path: Path, given: str
) -> None:
    before = json.dumps({"ID": "a", "Body": "1 + 1", "Question": "Is?", "Answer": 2})
    (tmp_path / "svamp.jsonl").write_text(before)
    arguments = ["--benchmarks", "svamp", "--data", f"svamp={tmp_path / given}", "--max-new-tokens", 4]
    said = run("evaluate", world / "student", *arguments, "--out", tmp_path, code=1)
    assert f"would write over {tmp_path / 'svamp.jsonl'}" in said
    assert [path.name for path in tmp_path.iterdir()] == ["svamp.jsonl"]
    assert (tmp_path / "svamp.jsonl").read_text() == before
    run("evaluate", world / "student", *arguments, "--out", tmp_path / "below")


def test_a_file_of_a_benchmarks_name_that_is_no_journal_is_kept(world: Path, tmp_path: Path) -> None:
    (tmp_path / "math_sums.jsonl").write_text("something of the user's")
    with pytest.raises(OSError, match="would write over .*math_sums.jsonl"):
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Echo)
    assert (tmp_path / "math_sums.jsonl").read_text() == "something of the user's"


def test_two_evaluations_do_not_write_to_one_folder(world: Path, tmp_path: Path) -> None:
    class Meanwhile(Echo):
        def sample(self, requests: Any, sampling: Sampling) -> Any:
            with pytest.raises(OSError, match="is being written by another `trustmopd evaluate`. Wait for it"):
                evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Echo)
            yield from super().sample(requests, sampling)

    evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Meanwhile)
    assert len(read_entries(tmp_path / "math_sums.jsonl", GRADED)[0]) == 4


def test_asking_for_less_is_said_and_scores_just_that(world: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(samples=3), lambda: Echo(stop_after=7))
    less = load_benchmarks([str(world / "math_sums.jsonl")], {}, limit=2)
    with pytest.warns(UserWarning, match="asked with 4 prompts × 3 samples, and now with 2 × 2. Only these are scored"):
        evaluate_checkpoint(METHOD, tmp_path, less, Sampling(samples=2), lambda: pytest.fail("it was sampled"))
    answers = collect([tmp_path])[0]["m"][0]["math_sums"]
    assert answers.by_prompt == {"math0": 0.5, "math1": 0.5} and answers.facts["responses"] == 4
    evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(samples=3), Echo)
    assert collect([tmp_path])[0]["m"][0]["math_sums"].facts["responses"] == 12


def test_an_unfinished_benchmark_does_not_hide_the_one_asked_for(world: Path, tmp_path: Path) -> None:
    method = Method("student", TeacherSource(model=str(world / "student")), "student")
    sampling = Sampling(max_new_tokens=4)
    with pytest.raises(KeyboardInterrupt):
        evaluate_checkpoint(method, tmp_path, sums(world), sampling, lambda: Echo(stop_after=1))
    files = f"{world / 'code_sums.jsonl'}, {world / 'if_sums.jsonl'}"
    run("evaluate", world / "student", "--benchmarks", files, "--max-new-tokens", 4, "--out", tmp_path)
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert list(scores["student"]["benchmarks"]) == ["code_sums", "if_sums"]
    assert "math_sums is left out of every row" in run("scores", tmp_path)


def test_a_changed_prompt_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": "1 + 1?", "answer": 2}))
    evaluate_checkpoint(METHOD, tmp_path / "out", load_benchmarks([str(path)], {}), Sampling(), Echo)
    path.write_text(json.dumps({"id": "a", "prompt": "2 + 1?", "answer": 3}))
    with pytest.raises(ValueError, match="prompt 'a' has changed since it was sampled"):
        evaluate_checkpoint(METHOD, tmp_path / "out", load_benchmarks([str(path)], {}), Sampling(), Echo)


def test_a_full_disk_stops_with_whole_lines(tmp_path: Path) -> None:
    """By the file-size limit, which also fails in the middle of a line."""
    path = tmp_path / "journal.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(path, {"n": int}) as journal:
        journal.append({"n": 0})
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
            with pytest.raises(OSError, match=r"cannot write .*journal.jsonl .*kept. Make room and run the same"):
                for n in range(1, 100):
                    journal.append({"n": n})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    entries, whole = read_entries(path, {"n": int})
    assert whole == path.stat().st_size > 150
    assert [entry["n"] for entry in entries] == list(range(len(entries)))
    with Journal(path, {"n": int}) as journal:
        journal.append({"n": len(entries)})
    assert len(read_entries(path, {"n": int})[0]) == len(entries) + 1


def test_an_edited_journal_is_named_by_line(tmp_path: Path) -> None:
    (tmp_path / "j.jsonl").write_text('{"a": 1}\nnot json\n')
    with pytest.raises(ValueError, match=r"j.jsonl, line 2 is not as it was written \(Expecting value.* Remove that"):
        Journal(tmp_path / "j.jsonl", {"a": int})


@pytest.mark.parametrize("verb", ["evaluate", "scores"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": None}, "its id is missing or wrong"),
        ({"id": 3}, "its id is missing or wrong"),
        ({"sample": None}, "its sample is missing or wrong"),
        ({"score": "1"}, "its score is missing or wrong"),
        ([1], "it has no fields"),
    ],
)
def test_a_line_without_its_fields_is_named(world: Path, tmp_path: Path, verb: str, change: Any, words: str) -> None:
    method = Method("student", TeacherSource(model=str(world / "student")), "student")
    evaluate_checkpoint(method, tmp_path, sums(world), Sampling(), Echo)
    journal = tmp_path / "math_sums.jsonl"
    lines = journal.read_text().splitlines()
    kept = {**json.loads(lines[2]), **change} if isinstance(change, dict) else change
    lines[2] = json.dumps({k: v for k, v in kept.items() if v is not None} if isinstance(kept, dict) else kept)
    journal.write_text("\n".join(lines) + "\n")
    arguments = ["--out", tmp_path, "--benchmarks", world / "math_sums.jsonl"]
    said = run(*(["evaluate", world / "student", *arguments] if verb == "evaluate" else ["scores", tmp_path]), code=1)
    assert f"math_sums.jsonl, line 3 is not as it was written ({words})" in said


def test_a_warning_is_one_clean_line_and_told_once(world: Path, tmp_path: Path) -> None:
    rows = ["{", *(json.dumps({"id": f"{i}", "prompt": "?", **({} if i else {"answer": 1})}) for i in range(6))]
    (tmp_path / "set.jsonl").write_text("\n".join(rows))
    # Into a file nothing can be written: the rows are read, and no model is.
    path = tmp_path / "set.jsonl"
    command = [sys.executable, "-m", "trustmopd", "evaluate", str(world / "student"), "--out", str(path)]
    found = subprocess.run([*command, "--benchmarks", str(path)], capture_output=True, text=True)
    assert found.stdout == ""
    (warning,) = [line for line in found.stderr.splitlines() if "malformed" in line]
    assert warning.startswith(f"warning: benchmark set: 6 malformed rows are left out: {path}, line 1: not JSON")
    assert warning.endswith(f"; {path}, line 3 and 4 more: it has no answer")
    assert "warnings.warn" not in found.stderr and ".py" not in found.stderr


def test_a_table_of_several_folders_needs_a_place_of_its_own(world: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        method = Method(name, TeacherSource(model=name), name)
        evaluate_checkpoint(method, tmp_path / name, sums(world), Sampling(), Echo)
        run("scores", tmp_path / name)
    before = (tmp_path / "a" / "scores.json").read_bytes()
    said = run("scores", tmp_path / "a", tmp_path / "b", code=1)
    assert "2 folders make a table of their own" in said and "--out runs/both" in said
    said = run("scores", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "both")
    assert (tmp_path / "a" / "scores.json").read_bytes() == before
    assert {"a", "b"} < json.loads((tmp_path / "both" / "scores.json").read_text()).keys()


def test_transformers_samples_in_batches_as_one_by_one_when_greedy(world: Path) -> None:
    source = TeacherSource(model=str(world / "student"), dtype="float32")
    requests = [Request(str(i), 0, [{"role": "user", "content": "say " * i + "hi"}]) for i in range(5)]
    sampling = Sampling(temperature=0, max_new_tokens=12)
    batched, single = (list(TransformersEngine(source, size).sample(requests, sampling)) for size in (3, 1))
    assert [(r.request, r.response, r.tokens) for r in batched] == [(r.request, r.response, r.tokens) for r in single]
    assert all(0 < reply.tokens <= 12 and reply.truncated == (reply.tokens == 12) for reply in batched)


def test_sampling_follows_the_seed_and_differs_by_sample(world: Path) -> None:
    engine = TransformersEngine(TeacherSource(model=str(world / "student")), 2)
    requests = [Request("a", sample, [{"role": "user", "content": "hi"}]) for sample in range(4)]

    def sample(seed: int) -> list[str]:
        replies = engine.sample(requests, Sampling(seed=seed, temperature=1.0, max_new_tokens=20))
        return [reply.response for reply in replies]

    assert sample(0) == sample(0) != sample(1)
    assert len(set(sample(0))) == 4
    assert seed_of(0, requests[:2]) != seed_of(0, requests[2:])


def test_a_prompt_longer_than_the_context_is_counted_and_not_cut(world: Path) -> None:
    engine = TransformersEngine(TeacherSource(model=str(world / "student")), 2)  # a context of 256 tokens
    requests = [Request(str(n), 0, [{"role": "user", "content": "x" * n}]) for n in (10, 300, 230)]
    replies = {reply.request.id: reply for reply in engine.sample(requests, Sampling(max_new_tokens=1000))}
    assert replies["300"].overlong and replies["300"].tokens == 0
    assert not replies["10"].overlong and replies["230"].tokens <= 256 - 230


def test_overlong_prompts_have_a_count_of_their_own(world: Path, tmp_path: Path) -> None:
    rows = [{"id": str(n), "prompt": "x" * n, "answer": 1} for n in (3, 300, 400)]  # a context of 256 tokens
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    said = run(
        *("evaluate", world / "student", "--benchmarks", tmp_path / "long.jsonl", "--max-new-tokens", 4, "--out", out)
    )
    found = json.loads((out / "scores.json").read_text())["student"]["benchmarks"]["long"]
    assert (found["responses"], found["overlong"], found["grader_errors"]) == (3, 2, 0)
    assert "of 3 responses" in said and "2 not sampled (prompt longer than the model's context)." in said
    graded = {entry["id"]: entry for entry in read_entries(out / "long.jsonl", GRADED)[0]}
    assert graded["300"]["overlong"] and (graded["300"]["score"], graded["300"]["details"]) == (0, {})


def test_a_template_that_opens_the_reasoning_is_seen() -> None:
    tokenizer = tiny.tokenizer(THINKING)
    assert render(tokenizer, [{"role": "user", "content": "hi"}])[1] == "<think>"
    assert render(tiny.tokenizer(), [{"role": "user", "content": "hi"}])[1] == ""
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        render(tokenizer, [{"role": "user", "content": "hi"}])


def test_a_template_without_a_system_role_gets_its_text_before_the_users() -> None:
    refuses = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + tiny.TEMPLATE
    )
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    tokenizer = tiny.tokenizer(refuses)
    folded = [{"role": "user", "content": "be brief\n\nhi"}]
    assert render(tokenizer, messages) == render(tiny.tokenizer(), folded) != render(tiny.tokenizer(), messages)
    tokenizer.chat_template = "{{ raise_exception('not today') }}"
    with pytest.raises(ValueError, match=r"does not take a conversation of system, user \(.*not today\). Mend"):
        render(tokenizer, messages)


@pytest.mark.parametrize(
    ("file", "spoil"),
    [
        ("model.safetensors", lambda content: content[:5000]),
        ("tokenizer.json", lambda content: b'{"version": "1.0", "model": {"type": "Bogus"}}'),
        ("tokenizer.json", lambda content: content[:50]),
        ("config.json", lambda content: b"{}"),
    ],
)
def test_a_broken_checkpoint_is_one_message(world: Path, tmp_path: Path, file: str, spoil: Any) -> None:
    shutil.copytree(world / "student", tmp_path / "broken")
    path = tmp_path / "broken" / file
    path.write_bytes(spoil(path.read_bytes()))
    said = run(
        *("evaluate", tmp_path / "broken", "--benchmarks", world / "math_sums.jsonl", "--out", tmp_path / "out"), code=1
    )
    assert "cannot load" in said and "that its files are whole" in said and "Traceback" not in said


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
    teachers = ["teacher-code", "teacher-if", "teacher-math"]
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
    for suffix in (".md", ".csv", ".tex"):
        assert "parameter-average" in (tmp_path / "tables" / f"scores{suffix}").read_text()
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*_sums*.jsonl")}
    run("evaluate", world / "recipe.yaml", "--out", tmp_path)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert "initial" in run("scores", tmp_path, "--against", "parameter-average")
    difference = json.loads((tmp_path / "scores.json").read_text())["tiny"]["difference"]
    assert difference["against"] == "parameter-average" and difference["n"] == 2


def test_one_row_alone_and_an_untrained_seed(world: Path, tmp_path: Path) -> None:
    said = run("evaluate", world / "recipe.yaml", "seeds=[0, 7]", "--only", "tiny", "--out", tmp_path)
    assert "tiny, seed 7: not trained yet" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores.json", "tables", "tiny"]
    said = run("evaluate", world / "recipe.yaml", "--only", "teacher-art", "--out", tmp_path, code=1)
    assert "--only teacher-art: there is no such row here. Choose from initial, teacher-math" in said


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
        *(".lock", "math_sums.jsonl", "math_sums.responses.jsonl", "run.json", "scores.json", "tables"),
    }
    assert json.loads((tmp_path / "b" / "scores.json").read_text())["student"]["recovery"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--benchmarks", "aime24"], "there is no benchmark 'aime24'. Choose from aime25"),
        (["--benchmarks", "aime25"], "needs the Hub dataset math-ai/aime25"),
        (["--benchmarks", "gsm8k", "--data", "gsm8k"], "Write it as ifeval="),
        (["--benchmarks", "gsm8k", "--data", "svamp=x"], "'svamp', which is not evaluated"),
        (["--benchmarks", "gsm8k", "--data", "gsm8k=nowhere.jsonl"], "there is no nowhere.jsonl"),
        (["--benchmarks", "gsm8k,gsm8k"], "two benchmarks are called 'gsm8k'"),
        (["--benchmarks", "SUMS", "--top-p", "0"], "top-p 0.0 draw nothing"),
        (["--benchmarks", "SUMS", "--out", __file__], "is, or lies below, a file: no folder can be there. Choose"),
        (["--benchmarks", "SUMS", "--only", "initial"], "overrides and --only are for recipes"),
    ],
)
def test_a_slip_is_one_message(world: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    pytest.importorskip("math_verify")
    given = [str(world / "math_sums.jsonl") if each == "SUMS" else each for each in arguments]
    said = run("evaluate", world / "student", "--out", tmp_path / "out", *given, code=1)
    assert words in said and "Traceback" not in said


def test_an_engine_that_cannot_be_is_named_before_anything_is_written(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    adapter = tiny.adapter(tiny.model(0), tmp_path / "adapter", 3)
    recipe = yaml.safe_load((world / "recipe.yaml").read_text())
    recipe["teachers"]["math"] = {"adapter": str(adapter)}
    (tmp_path / "adapters.yaml").write_text(yaml.safe_dump(recipe))
    needed = f"{adapter!s}' is an adapter. Merge it into its base first"
    cases = [(world / "student", "llama", "no engine 'llama'. Choose transformers or vllm"), (adapter, "vllm", needed)]
    if find_spec("vllm") is None:
        cases += [(world / "recipe.yaml", "vllm", "--engine vllm needs vLLM (No module named 'vllm'). Install it")]
    for what, engine, words in cases:
        said = run(
            "evaluate", what, "--engine", engine, "--benchmarks", world / "math_sums.jsonl", "--out", out, code=1
        )
        assert words in said and not out.exists()
    only = ["--only", "teacher-math", "--out", out]
    assert needed in run("evaluate", tmp_path / "adapters.yaml", "--engine", "vllm", *only, code=1)
    assert not out.exists()


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (
            ("config.json", "tokenizer.json", "training_args.bin"),
            "it has no weights (*.safetensors, pytorch_model*.bin",
        ),
        (("config.json", "model.safetensors"), "it has no tokenizer (tokenizer.json, "),
    ],
)
def test_a_folder_without_weights_or_tokenizer_is_named_before_anything_is_written(
    world: Path, tmp_path: Path, kept: tuple[str, ...], words: str
) -> None:
    part = tmp_path / "part"
    part.mkdir()
    for name in kept:
        source = world / "student" / name
        (part / name).write_bytes(source.read_bytes() if source.exists() else b"")
    out = tmp_path / "out"
    said = run("evaluate", part, "--benchmarks", world / "math_sums.jsonl", "--out", out, code=1)
    assert f"{part} is no whole checkpoint: {words}" in said and not out.exists()


def in_the_hub_cache(cache: Path, name: str, revisions: dict[str, Path]) -> None:
    """As huggingface_hub leaves what it has downloaded: a snapshot a commit, and names that point at them."""
    folder = cache / f"models--{name.replace('/', '--')}"
    for number, (revision, source) in enumerate(revisions.items()):
        commit = f"{number:040x}"
        shutil.copytree(source, folder / "snapshots" / commit)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / revision).write_text(commit)


def test_an_adapters_revision_is_not_its_bases(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training gives it to the adapter alone where the teacher has no model of its own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    base = tiny.model(0)
    newest, first = (tiny.adapter(base, tmp_path / name, seed) for seed, name in enumerate(("newest", "first")))
    in_the_hub_cache(tmp_path / "hub", "org/base", {"main": world / "student"})
    in_the_hub_cache(tmp_path / "hub", "org/adapter", {"main": newest, "v1": first})
    recipe = yaml.safe_load((world / "recipe.yaml").read_text())
    recipe |= {"student": "org/base", "teachers": {"math": {"adapter": "org/adapter", "revision": "v1"}}}
    recipe["evaluation"] |= {"benchmarks": recipe["evaluation"]["benchmarks"][:1], "temperature": 0}
    (tmp_path / "hub.yaml").write_text(yaml.safe_dump(recipe))
    run("evaluate", tmp_path / "hub.yaml", "--only", "teacher-math", "--out", tmp_path / "out")
    graded, _ = read_entries(tmp_path / "out" / "teacher-math" / "math_sums.jsonl", GRADED)

    def greedy(adapter: Path) -> list[str]:
        engine = TransformersEngine(TeacherSource(adapter=str(adapter)), 2, str(world / "student"))
        asked = [Request(row["id"], 0, [{"role": "user", "content": row["prompt"]}]) for row in sums(world)[0].rows]
        return [reply.response for reply in engine.sample(asked, Sampling(temperature=0, max_new_tokens=8))]

    assert [entry["response"] for entry in graded if entry["sample"] == 0] == greedy(first) != greedy(newest)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("/no/such/folder", "the checkpoint '/no/such/folder' is no folder here and is no Hub id. Check the path"),
        ("org/mistyped", "the checkpoint 'org/mistyped' is no folder here and cannot be had from the Hub ("),
        ("EMPTY", "is no whole checkpoint: it has no configuration (config.json, adapter_config.json). Give"),
    ],
)
def test_a_model_that_is_nowhere_is_named_before_anything_is_written(
    world: Path, tmp_path: Path, place: str, words: str
) -> None:
    (tmp_path / "empty").mkdir()
    place = place.replace("EMPTY", str(tmp_path / "empty"))
    out = tmp_path / "out"
    said = run("evaluate", place, "--benchmarks", world / "math_sums.jsonl", "--out", out, code=1)
    assert words in said and not out.exists()
    recipe = yaml.safe_load((world / "recipe.yaml").read_text())
    recipe["teachers"]["if"] = place
    (tmp_path / "slip.yaml").write_text(yaml.safe_dump(recipe))
    said = run("evaluate", tmp_path / "slip.yaml", "--only", "initial", "--only", "teacher-if", "--out", out, code=1)
    assert words in said and not out.exists()  # not after the initial student's hours


def test_a_record_without_responses_claims_no_folder(world: Path, tmp_path: Path) -> None:
    def broken() -> Any:
        raise ValueError("cannot load")

    with pytest.raises(ValueError, match="cannot load"):
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), broken)
    other = Method("n", TeacherSource(model="elsewhere"), "n")
    evaluate_checkpoint(other, tmp_path, sums(world), Sampling(temperature=1.0), Echo)
    assert json.loads((tmp_path / "run.json").read_text())["model"] == "elsewhere"


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
    assert (
        process.returncode == 130
        and "responses and grades are kept. Continue with: the same command" in said
        and "Traceback" not in said
    )
    kept = graded.read_bytes()
    assert kept.endswith(b"\n") and 0 < len(kept.splitlines()) < 3000
    limit = len(kept.splitlines()) + 10
    with pytest.warns(UserWarning, match="asked with 3000 prompts"):
        run("evaluate", *command[4:], "--limit", limit)
    assert graded.read_bytes().startswith(kept)
