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
from command import run
from evaluated import METHOD, Echo, sums

from trustmopd.evaluation.entries import Entry
from trustmopd.evaluation.evaluate import evaluate_checkpoint
from trustmopd.evaluation.sampling import Sampling
from trustmopd.recipe import TeacherSource

ROW = {"id": "a", "prompt": "1 + 1?", "answer": 2}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(folder: Path, *arguments: object) -> str:
    """What is said, when no file under the folder has changed for it."""
    before = contents(folder)
    said = run("evaluate", *arguments, code=1)
    assert contents(folder) == before and "Traceback" not in said
    return said


# ---- Files of the user's


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.responses.jsonl"])
@pytest.mark.parametrize("earlier", [False, True], ids=["new", "evaluated before"])
def test_a_set_in_the_folder_of_the_evaluation_is_not_written_over(
    world: Path, tmp_path: Path, name: str, earlier: bool
) -> None:
    if earlier:
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), Echo)
    # A journal would cut it off: it has no whole line.
    (tmp_path / name).write_text(json.dumps(ROW))
    said = refused(tmp_path, world / "student", "--benchmarks", tmp_path / name, "--out", tmp_path)
    assert str(tmp_path / name) in said and "--out" in said


@pytest.mark.parametrize("given", ["svamp.jsonl", "."])
def test_a_local_copy_in_the_folder_of_the_evaluation_is_not_written_over(
    world: Path, tmp_path: Path, given: str
) -> None:
    (tmp_path / "svamp.jsonl").write_text(json.dumps({"ID": "a", "Body": "1 + 1", "Question": "Is?", "Answer": 2}))
    arguments = ["--benchmarks", "svamp", "--data", f"svamp={tmp_path / given}", "--max-new-tokens", 4]
    assert str(tmp_path / "svamp.jsonl") in refused(tmp_path, world / "student", *arguments, "--out", tmp_path)
    run("evaluate", world / "student", *arguments, "--out", tmp_path / "below")


def test_a_file_of_ones_own_that_is_called_as_ours_is_kept(world: Path, tmp_path: Path) -> None:
    (tmp_path / "math_sums.jsonl").write_text('{"my": "notes"}')
    given = ["--benchmarks", world / "math_sums.jsonl", "--out", tmp_path]
    assert str(tmp_path / "math_sums.jsonl") in refused(tmp_path, world / "student", *given)


# ---- Earlier evaluations


def test_an_average_is_known_by_its_teachers(world: Path, tmp_path: Path) -> None:
    """It is made again where it is gone, and refused where a teacher is another one now."""
    given = [world / "recipe.yaml", f"output={tmp_path / 'run'}", "--benchmarks", world / "math_sums.jsonl"]
    given += ["--out", tmp_path / "out"]
    for _ in range(2):
        run("evaluate", *given, "--only", "parameter-average")
        sampled = (tmp_path / "out" / "parameter-average" / "math_sums.responses.jsonl").read_bytes()
        shutil.rmtree(tmp_path / "run" / "merged")
    assert sampled == (tmp_path / "out" / "parameter-average" / "math_sums.responses.jsonl").read_bytes()
    other = tiny.save(tiny.specialist(tiny.model(0), 9), tmp_path / "math")
    said = run("evaluate", *given, f"teachers.math={other}", code=1)
    assert str(tmp_path / "out" / "parameter-average") in said and "model = " in said
    assert not (tmp_path / "out" / "initial").exists()


def test_teachers_of_several_bases_are_evaluated_without_an_average(world: Path, tmp_path: Path) -> None:
    """`code` is of another size: its parameters have no mean with the others'."""
    base = tiny.model(5, hidden=48, layers=3)
    grown, own = tiny.save(tiny.specialist(base, 2), tmp_path / "code"), tiny.save(base, tmp_path / "second")
    changes = [f"output={tmp_path / 'run'}", f"teachers.code={{model: {grown}, reference: {own}}}"]
    said = run("evaluate", world / "recipe.yaml", *changes, "--benchmarks", world / "math_sums.jsonl")
    assert "parameter-average" in said and "code" in said
    scores = json.loads((tmp_path / "run" / "evaluation" / "scores.json").read_text())
    assert {"initial", "teacher-math", "teacher-code", "teacher-if"} <= set(scores)
    assert "parameter-average" not in scores


def test_two_recipes_with_folders_of_their_own_share_a_table(world: Path, tmp_path: Path) -> None:
    asked = ["--benchmarks", world / "math_sums.jsonl", "--only", "initial", "--only", "parameter-average", "--only"]
    for name in ("trust", "uniform"):
        shutil.copytree(world / "run", tmp_path / name, ignore=shutil.ignore_patterns("merged", "evaluation"))
        recipe = [world / "recipe.yaml", f"name={name}", f"output={tmp_path / name}"]
        run("evaluate", *recipe, *asked, name)
        run("evaluate", *recipe, *asked, name, "--out", tmp_path / "shared")
    run("scores", *(tmp_path / name / "evaluation" for name in ("trust", "uniform")), "--out", tmp_path / "both")
    for folder in ("shared", "both"):
        rows = json.loads((tmp_path / folder / "scores.json").read_text())
        assert rows.keys() >= {"initial", "parameter-average", "trust", "uniform"}


def test_a_row_that_cannot_go_on_is_named_before_another_is_sampled(world: Path, tmp_path: Path) -> None:
    given = [world / "recipe.yaml", "--out", tmp_path]
    run("evaluate", *given, "--only", "tiny", "--benchmarks", world / "math_sums.jsonl")
    said = refused(tmp_path, *given, "--benchmarks", world / "code_sums.jsonl", "--temperature", "1")
    assert str(tmp_path / "tiny" / "seed-0") in said and "temperature = 0.6" in said


def test_a_record_without_responses_claims_no_folder(world: Path, tmp_path: Path) -> None:
    def broken() -> Any:
        raise ValueError("cannot load")

    with pytest.raises(ValueError, match="cannot load"):
        evaluate_checkpoint(METHOD, tmp_path, sums(world), Sampling(), broken)
    other = Entry("n", TeacherSource(model="elsewhere"), "n")
    evaluate_checkpoint(other, tmp_path, sums(world), Sampling(temperature=1.0), Echo)
    assert json.loads((tmp_path / "run.json").read_text())["model"] == "elsewhere"


def test_scores_of_a_folder_with_a_broken_record_name_it_and_how_to_go_on(tmp_path: Path) -> None:
    record = tmp_path / "run.json"
    record.write_text('{"schema_version": 2}')
    said = run("scores", tmp_path, code=1)
    assert str(record) in said and "Restore" in said and "evaluate again" in said


# ---- What is asked for


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--benchmarks", "aime24"], "'aime24'"),
        (["--benchmarks", "aime25"], "math-ai/aime25"),
        (["--benchmarks", "gsm8k", "--data", "gsm8k"], "--data gsm8k"),
        (["--benchmarks", "gsm8k", "--data", "svamp=x"], "'svamp'"),
        (["--benchmarks", "gsm8k", "--data", "gsm8k=nowhere.jsonl"], "nowhere.jsonl"),
        (["--benchmarks", "gsm8k,gsm8k"], "'gsm8k'"),
        (["--benchmarks", "SUMS", "--top-p", "0"], "top_p = 0.0"),
        (["--benchmarks", "SUMS", "--out", __file__], "test_slips.py"),
        (["--benchmarks", "SUMS", "--only", "initial"], "--only"),
        (["--benchmarks", "SUMS", "--engine", "llama"], "'llama'"),
    ],
)
def test_a_slip_is_one_message(world: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    pytest.importorskip("math_verify")
    given = [str(world / "math_sums.jsonl") if each == "SUMS" else each for each in arguments]
    assert words in refused(tmp_path, world / "student", "--out", tmp_path / "out", *given)


def test_an_engine_that_cannot_be_is_named_before_anything_is_written(world: Path, tmp_path: Path) -> None:
    adapter = tiny.adapter(tiny.model(0), tmp_path / "adapter", 3)
    given = ["--engine", "vllm", "--out", tmp_path / "out"]
    assert f"{adapter}'" in refused(tmp_path, adapter, *given, "--benchmarks", world / "math_sums.jsonl")
    changed = f"teachers.math={{adapter: {adapter}}}"
    assert f"{adapter}'" in refused(tmp_path, world / "recipe.yaml", changed, *given, "--only", "teacher-math")
    if find_spec("vllm") is None:
        assert "trustmopd[vllm]" in refused(tmp_path, world / "recipe.yaml", *given)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model.safetensors", None, "*.safetensors, pytorch_model*.bin"),
        ("*token*", None, "tokenizer.json, "),
        ("config.json", None, "config.json, adapter_config.json"),
        ("model.safetensors", b"cut", ""),
        ("tokenizer.json", b'{"version": "1.0", "model": {"type": "Bogus"}}', ""),
        ("tokenizer.json", b'{"ver', ""),
        ("config.json", b"{}", ""),
    ],
)
def test_a_checkpoint_that_lacks_a_file_or_has_a_broken_one_is_named(
    world: Path, tmp_path: Path, file: str, content: bytes | None, words: str
) -> None:
    shutil.copytree(world / "student", broken := tmp_path / "broken")
    for path in list(broken.glob(file)):
        path.unlink() if content is None else path.write_bytes(content)
    (broken / "training_args.bin").touch()  # which transformers' Trainer writes beside the weights
    given = ["--benchmarks", world / "math_sums.jsonl", "--out", tmp_path / "out"]
    said = refused(tmp_path, broken, *given) if content is None else run("evaluate", broken, *given, code=1)
    assert str(broken) in said and words in said and "Traceback" not in said


def test_a_checkpoint_without_some_of_its_weights_is_not_evaluated(world: Path, tmp_path: Path) -> None:
    path = tiny.incomplete(world / "student", tmp_path / "incomplete")
    given = ["--benchmarks", world / "math_sums.jsonl", "--max-new-tokens", 4]
    said = run("evaluate", path, *given, "--out", tmp_path / "out", code=1)
    assert str(path) in said and "layers.0.mlp.down_proj" in said


@pytest.mark.parametrize("place", ["/no/such/folder", "org/mistyped"])
def test_a_model_that_is_nowhere_is_named_before_anything_is_written(world: Path, tmp_path: Path, place: str) -> None:
    out = ["--out", tmp_path / "out"]
    assert f"'{place}'" in refused(tmp_path, place, "--benchmarks", world / "math_sums.jsonl", *out)
    both = ["--only", "initial", "--only", "teacher-if"]  # not after the initial student's hours
    assert f"'{place}'" in refused(tmp_path, world / "recipe.yaml", f"teachers.if={place}", *both, *out)


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
