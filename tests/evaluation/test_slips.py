"""What cannot be evaluated is told at once, in one message, and nothing of the user's is touched."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from evaluated import METHOD, Echo, run, sums

from trustmopd.evaluation.entries import Entry
from trustmopd.evaluation.evaluate import evaluate_checkpoint
from trustmopd.evaluation.sampling import Sampling
from trustmopd.recipe import TeacherSource


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.responses.jsonl", "scores.json"])
@pytest.mark.parametrize("earlier", [False, True], ids=["new", "evaluated before"])
def test_a_set_in_the_folder_of_the_evaluation_is_not_written_over(
    world: Path, tmp_path: Path, name: str, earlier: bool
) -> None:
    if earlier:
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Echo)
    row = {"id": "a", "prompt": "1 + 1?", "answer": 2}
    before = json.dumps([row] if name == "scores.json" else row)  # a journal would cut it off: it has no whole line
    (tmp_path / name).write_text(before)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    said = run(
        *("evaluate", world / "student", "--benchmarks", tmp_path / name, "--max-new-tokens", 4, "--out", tmp_path),
        code=1,
    )
    assert str(tmp_path / name) in said and "--out" in said
    assert (tmp_path / name).read_text() == before
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files


def test_a_checkpoint_without_some_of_its_weights_is_not_evaluated(world: Path, tmp_path: Path) -> None:
    path = tiny.incomplete(world / "student", tmp_path / "incomplete")
    given = ["--benchmarks", world / "math_sums.jsonl", "--max-new-tokens", 4]
    said = run("evaluate", path, *given, "--out", tmp_path / "out", code=1)
    assert str(path) in said and "layers.0.mlp.down_proj" in said


@pytest.mark.parametrize("given", ["svamp.jsonl", "."])
def test_a_local_copy_in_the_folder_of_the_evaluation_is_not_written_over(
    world: Path, tmp_path: Path, given: str
) -> None:
    before = json.dumps({"ID": "a", "Body": "1 + 1", "Question": "Is?", "Answer": 2})
    (tmp_path / "svamp.jsonl").write_text(before)
    arguments = ["--benchmarks", "svamp", "--data", f"svamp={tmp_path / given}", "--max-new-tokens", 4]
    said = run("evaluate", world / "student", *arguments, "--out", tmp_path, code=1)
    assert str(tmp_path / "svamp.jsonl") in said
    assert [path.name for path in tmp_path.iterdir()] == ["svamp.jsonl"]
    assert (tmp_path / "svamp.jsonl").read_text() == before
    run("evaluate", world / "student", *arguments, "--out", tmp_path / "below")


@pytest.mark.parametrize("place", ["out", "run/seed-1/evaluation"])
def test_a_set_called_scores_is_not_written_over_by_a_recipes(world: Path, tmp_path: Path, place: str) -> None:
    recipe = yaml.safe_load((world / "recipe.yaml").read_text()) | {"output": str(tmp_path / "run")}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    own = tmp_path / place / "scores.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps([{"id": "a", "prompt": "1 + 1?", "answer": 2}]))
    before = own.read_text()
    given = ["--only", "initial", "--benchmarks", own, "--out", tmp_path / "out"]
    said = run("evaluate", tmp_path / "recipe.yaml", *given, code=1)
    assert str(own) in said and own.read_text() == before
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted([own, tmp_path / "recipe.yaml"])


def test_an_average_is_known_by_its_teachers(world: Path, tmp_path: Path) -> None:
    """It is made again where it is gone, and refused where a teacher is another one now."""
    recipe = yaml.safe_load((world / "recipe.yaml").read_text()) | {"output": str(tmp_path / "run")}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    given = ["evaluate", tmp_path / "recipe.yaml", "--benchmarks", world / "math_sums.jsonl", "--out", tmp_path / "out"]
    run(*given, "--only", "parameter-average")
    sampled = (tmp_path / "out" / "parameter-average" / "math_sums.responses.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "run" / "merged")
    run(*given, "--only", "parameter-average")
    assert (tmp_path / "out" / "parameter-average" / "math_sums.responses.jsonl").read_bytes() == sampled
    shutil.copytree(world / "math", tmp_path / "math")
    recipe["teachers"]["math"] = str(tmp_path / "math")
    weights = tmp_path / "math" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    said = run(*given, code=1)
    assert str(tmp_path / "out" / "parameter-average") in said and "model = " in said
    assert not (tmp_path / "out" / "initial").exists()


def test_teachers_of_several_bases_are_evaluated_without_an_average(world: Path, tmp_path: Path) -> None:
    """`code` is of another size: its parameters have no mean with the others'."""
    base = tiny.model(5, hidden=48, layers=3)
    grown = {"model": tiny.save(tiny.specialist(base, 2), tmp_path / "code")}
    grown["reference"] = tiny.save(base, tmp_path / "second")
    recipe = yaml.safe_load((world / "recipe.yaml").read_text()) | {"output": str(tmp_path / "run")}
    recipe["teachers"]["code"] = grown
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    said = run("evaluate", tmp_path / "recipe.yaml", "--benchmarks", world / "math_sums.jsonl")
    assert "parameter-average" in said and "code" in said
    scores = json.loads((tmp_path / "run" / "evaluation" / "scores.json").read_text())
    assert {"initial", "teacher-math", "teacher-code", "teacher-if"} <= set(scores)
    assert "parameter-average" not in scores


def test_two_recipes_with_folders_of_their_own_share_a_table(world: Path, tmp_path: Path) -> None:
    recipe = yaml.safe_load((world / "recipe.yaml").read_text())
    asked = ["--benchmarks", world / "math_sums.jsonl", "--only", "initial", "--only", "parameter-average", "--only"]
    for name in ("trust", "uniform"):
        output = tmp_path / name
        shutil.copytree(world / "run", output, ignore=shutil.ignore_patterns("merged", "evaluation"))
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(recipe | {"name": name, "output": str(output)}))
        run("evaluate", tmp_path / f"{name}.yaml", *asked, name)
        run("evaluate", tmp_path / f"{name}.yaml", *asked, name, "--out", tmp_path / "shared")
    run("scores", *(tmp_path / name / "evaluation" for name in ("trust", "uniform")), "--out", tmp_path / "both")
    for folder in ("shared", "both"):
        rows = json.loads((tmp_path / folder / "scores.json").read_text())
        assert rows.keys() >= {"initial", "parameter-average", "trust", "uniform"}


@pytest.mark.parametrize("name", ["run.json", "scores.json"])
def test_a_file_of_ones_own_that_is_called_as_ours_is_kept(world: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"my": "notes"}')
    said = run("evaluate", world / "student", "--benchmarks", world / "math_sums.jsonl", "--out", tmp_path, code=1)
    assert str(tmp_path / name) in said
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, '{"my": "notes"}')]


def test_a_row_that_cannot_go_on_is_named_before_another_is_sampled(world: Path, tmp_path: Path) -> None:
    given = ["evaluate", world / "recipe.yaml", "--out", tmp_path]
    run(*given, "--only", "tiny", "--benchmarks", world / "math_sums.jsonl")
    said = run(*given, "--benchmarks", world / "code_sums.jsonl", "--temperature", "1", code=1)
    place = tmp_path / "tiny" / "seed-0"
    assert str(place) in said and "temperature = 0.6" in said
    assert not (tmp_path / "initial").exists(), "rows were sampled before the refusal"


def test_a_file_of_a_benchmarks_name_that_is_no_journal_is_kept(world: Path, tmp_path: Path) -> None:
    (tmp_path / "math_sums.jsonl").write_text("something of the user's")
    with pytest.raises(OSError, match="math_sums.jsonl"):
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Echo)
    assert (tmp_path / "math_sums.jsonl").read_text() == "something of the user's"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--benchmarks", "aime24"], "'aime24'"),
        (["--benchmarks", "aime25"], "math-ai/aime25"),
        (["--benchmarks", "gsm8k", "--data", "gsm8k"], "--data gsm8k"),
        (["--benchmarks", "gsm8k", "--data", "svamp=x"], "'svamp'"),
        (["--benchmarks", "gsm8k", "--data", "gsm8k=nowhere.jsonl"], "nowhere.jsonl"),
        (["--benchmarks", "gsm8k,gsm8k"], "'gsm8k'"),
        (["--benchmarks", "SUMS", "--top-p", "0"], "top-p = 0.0"),
        (["--benchmarks", "SUMS", "--out", __file__], "test_slips.py"),
        (["--benchmarks", "SUMS", "--only", "initial"], "--only"),
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
    needed = f"{adapter}'"
    cases = [(world / "student", "llama", "'llama'"), (adapter, "vllm", needed)]
    if find_spec("vllm") is None:
        cases += [(world / "recipe.yaml", "vllm", "trustmopd[vllm]")]
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
            "*.safetensors, pytorch_model*.bin",
        ),
        (("config.json", "model.safetensors"), "tokenizer.json, "),
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
    assert str(part) in said and words in said and not out.exists()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("/no/such/folder", "'/no/such/folder'"),
        ("org/mistyped", "'org/mistyped'"),
        ("EMPTY", "config.json, adapter_config.json"),
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
    assert str(tmp_path / "broken") in said and "Traceback" not in said


def test_a_record_without_responses_claims_no_folder(world: Path, tmp_path: Path) -> None:
    def broken() -> Any:
        raise ValueError("cannot load")

    with pytest.raises(ValueError, match="cannot load"):
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), broken)
    other = Entry("n", TeacherSource(model="elsewhere"), "n")
    evaluate_checkpoint(other, tmp_path, sums(world), Sampling(temperature=1.0), Echo)
    assert json.loads((tmp_path / "run.json").read_text())["model"] == "elsewhere"


def test_a_warning_is_one_clean_line_and_told_once(world: Path, tmp_path: Path) -> None:
    rows = ["{", *(json.dumps({"id": f"{i}", "prompt": "?", **({} if i else {"answer": 1})}) for i in range(6))]
    (tmp_path / "set.jsonl").write_text("\n".join(rows))
    # Into a file nothing can be written: the rows are read, and no model is.
    path = tmp_path / "set.jsonl"
    command = [sys.executable, "-m", "trustmopd", "evaluate", str(world / "student"), "--out", str(path)]
    found = subprocess.run([*command, "--benchmarks", str(path)], capture_output=True, text=True)
    assert found.stdout == ""
    (warning,) = [line for line in found.stderr.splitlines() if "malformed" in line]
    assert warning.startswith("warning: ") and "6 malformed rows" in warning
    assert f"{path}, line 1" in warning and f"{path}, line 3 and 4 more" in warning
    assert "warnings.warn" not in found.stderr and ".py" not in found.stderr


def test_scores_of_a_folder_with_a_broken_record_name_it_and_how_to_go_on(tmp_path: Path) -> None:
    record = tmp_path / "run.json"
    record.write_text('{"schema_version": 2}')
    said = run("scores", tmp_path, code=1)
    assert str(record) in said and "Restore" in said and "evaluate again" in said
