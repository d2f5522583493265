"""Slips with one's own recipe, models and prompts are told by name and remedy, before anything is written."""

import json
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tiny
import yaml
from datasets import Dataset
from transformers import TrainingArguments
from typer.testing import CliRunner

from trustmopd import TrustMOPDConfig, TrustMOPDTrainer, load_recipe
from trustmopd.cli import app
from trustmopd.planning.memory import checkpoint_bytes
from trustmopd.training.prepare import prepare


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, base = tmp_path_factory.mktemp("models"), tiny.model(0)
    tiny.save(base, folder / "base")
    for seed, name in enumerate(("math", "code"), start=1):
        tiny.save(tiny.specialist(base, seed), folder / name)
    return folder


@pytest.fixture
def recipe(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the current directory."""
    monkeypatch.chdir(tmp_path)
    tiny.prompts(24).to_json("prompts.jsonl")
    fields = {
        "name": "own",
        "student": str(models / "base"),
        "teachers": {name: str(models / name) for name in ("math", "code")},
        "prompts": {"path": "prompts.jsonl"},
        "training": {"max_steps": 2, "num_candidates": 16, "global_batch_size": 4, "max_completion_length": 6},
    }
    Path("recipe.yaml").write_text(yaml.safe_dump(fields))
    return Path("recipe.yaml")


def cli(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("name", ["../evil", "..", "/evil", "a/../../b", "..\\evil", "."])
def test_a_name_that_leaves_the_folder_of_runs_is_refused(recipe: Path, name: str) -> None:
    said = cli("train", recipe, f"name={name}", "--dry-run", code=1)
    assert "name = " in said and "runs/<name>" in said


def test_a_dry_run_refuses_an_output_where_nobody_can_make_a_folder(recipe: Path) -> None:
    assert "/proc cannot be written to" in cli("train", recipe, "output=/proc/x", "--dry-run", code=1)
    assert sorted(path.name for path in Path().iterdir()) == ["prompts.jsonl", "recipe.yaml"]


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("allocation.rule=trsut", "trust"),
        ("allocation.score=displacment", "displacement"),
        ("allocation.granularity=tokens", "token"),
        ("target.rule=geometric-mean", "geometric_mean"),
    ],
)
def test_a_misspelt_choice_in_a_recipe_names_the_one_that_was_meant(recipe: Path, override: str, meant: str) -> None:
    assert f"Did you mean {meant}? " in cli("train", recipe, override, "--dry-run", code=1)


@pytest.mark.parametrize(
    ("field", "value", "meant"),
    [
        ("allocation", "trsut", "trust"),
        ("allocation", {"rule": "unifrom"}, "uniform"),
        ("score", "displacment", "displacement"),
        ("target", "geometric-mean", "geometric_mean"),
        ("granularity", "tokens", "token"),
    ],
)
def test_a_misspelt_choice_in_python_names_the_one_that_was_meant(field: str, value: object, meant: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean {meant}\\? "):
        TrustMOPDConfig(output_dir="unused", **{field: value})


def test_broken_json_names_one_line_and_the_column(recipe: Path) -> None:
    Path("broken.jsonl").write_text(json.dumps({"prompt": "1 + 1"}) + '\n\n{"prompt": 2 + 2}\n')
    said = cli("train", recipe, "prompts.path=broken.jsonl", "--dry-run", code=1)
    assert "broken.jsonl, line 3: not valid JSON (column 14: " in said and "line 1" not in said


@pytest.mark.parametrize("verb", [["report", "."], ["scores", "."]])
@pytest.mark.parametrize("out", ["recipe.yaml", "recipe.yaml/sub"])
def test_an_out_that_is_a_file_is_named(recipe: Path, verb: list[str], out: str) -> None:
    before = recipe.read_text()
    Path("metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    said = cli(*verb, "--out", out, code=1)
    assert f"--out {out}" in said and "recipe.yaml is a file" in said
    assert recipe.read_text() == before


def test_ctrl_c_while_modules_are_imported_leaves_no_traceback(tmp_path: Path) -> None:
    """The moment is when the first of ours is looked for."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, os, signal\n"
        "def on_import(event, given):\n"
        "    if event == 'import' and given[0] == 'trustmopd.cli':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.addaudithook(on_import)\n"
    )
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *filter(None, sys.path)])}
    ended = subprocess.run(
        [sys.executable, "-m", "trustmopd", "--version"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def write(path: str, rows: list[dict[str, object]]) -> Path:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Path(path)


def asked(text: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": text}]


def test_prompts_of_one_id_keep_their_own_texts_in_the_viewer(recipe: Path) -> None:
    """Two files, each numbered from 0."""
    for name in ("a", "b"):
        write(f"both/{name}.jsonl", [{"id": str(n), "prompt": asked(f"{name} {n}")} for n in range(4)])
    steps = ["training.max_steps=1", "training.global_batch_size=8", "training.record_allocation_every=1"]
    with pytest.warns(UserWarning, match="4 ids each stand for different prompts"):
        cli("train", recipe, "prompts.path=both", *steps)
    cli("report", "runs/own")
    page = Path("runs/own/report.html").read_text()
    data = json.loads(re.search(r'id="viewer-data">(.*?)</script>', page, re.DOTALL)[1])
    texts = {response["row"]: data["prompts"][str(response["row"])] for response in data["responses"]}
    assert texts == {n + 4 * place: f"{name} {n}" for place, name in enumerate("ab") for n in range(4)}


@pytest.mark.parametrize("id", [{"file": 1}, [1], 1])
def test_an_id_may_be_anything_and_is_counted(recipe: Path, id: object) -> None:
    write("ids.jsonl", [{"id": id, "prompt": asked(str(n))} for n in range(4)])
    with pytest.warns(UserWarning, match="1 ids each stand"):
        cli("train", recipe, "prompts.path=ids.jsonl", "--dry-run")


def test_a_folder_or_a_name_that_is_no_benchmark_or_checkpoint_is_named(recipe: Path, models: Path) -> None:
    assert "is not a whole checkpoint" in cli("evaluate", models, "--benchmarks", "testbed_math", "--dry-run", code=1)
    assert "''" in cli("evaluate", models / "base", "--benchmarks", "", "--dry-run", code=1)


def test_parts_of_text_are_read_as_the_text_that_they_are(recipe: Path) -> None:
    parts = [[{"type": "text", "text": "2 + "}, {"type": "text", "text": str(n)}] for n in range(8)]
    write("parts.jsonl", [{"prompt": asked(each)} for each in parts])
    write("texts.jsonl", [{"prompt": asked(f"2 + \n{n}")} for n in range(8)])
    seen = {}
    for name in ("parts", "texts"):
        steps = ["training.max_steps=1", "training.record_allocation_every=1", f"output={name}"]
        cli("train", recipe, f"prompts.path={name}.jsonl", *steps)
        seen[name] = [json.loads(line)["loss"] for line in Path(name, "metrics.jsonl").read_text().splitlines()[:1]]
    assert seen["parts"] == seen["texts"]


def test_prompts_that_are_rendered_alike_are_counted(recipe: Path) -> None:
    """The tokenizer knows neither letter."""
    write("alike.jsonl", [{"prompt": asked(text)} for text in ("1 ä", "1 ö", "1 ä", "2", "3", "4", "5", "5")])
    with pytest.warns(UserWarning, match="1 of 8 prompts .* for the student: rows 0 and 1"):
        cli("train", recipe, "prompts.path=alike.jsonl", "--dry-run")


def test_a_history_with_tool_calls_is_read_and_a_column_of_tools_is_refused(recipe: Path) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    history = [*asked("1 + 1"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    rows = [{"prompt": [*history, {"role": "tool", "content": str(n)}]} for n in range(4)]
    write("calls.jsonl", rows)
    assert "all checks passed" in cli("train", recipe, "prompts.path=calls.jsonl", "--dry-run")
    write("tools.jsonl", [{**row, "tools": [{"name": "add"}]} for row in rows])
    said = cli("train", recipe, "prompts.path=tools.jsonl", "--dry-run", code=1)
    assert "4 of 4 prompts have 'tools'" in said and "tools=[…]" in said


def test_rows_beyond_the_tokenizer_s_tokens_are_never_candidates(recipe: Path, tmp_path: Path) -> None:
    """All models have thirteen rows more, which the student likes best."""
    wide = {name: tmp_path / "wide" / name for name in ("base", "math", "code")}
    for seed, folder in enumerate(wide.values()):
        model = tiny.model(0, vocab=tiny.VOCAB + 13)
        if seed:
            model = tiny.specialist(model, seed)
        else:
            model.lm_head.weight.data[tiny.VOCAB :] *= 50
        tiny.save(model, folder)
    change = [f"student={wide['base']}", *(f"teachers.{name}={wide[name]}" for name in ("math", "code"))]
    said = cli("train", recipe, *change, f"training.num_candidates={tiny.VOCAB + 1}", "--dry-run", code=1)
    assert f"num_candidates = {tiny.VOCAB + 1}" in said and f"from 1 to {tiny.VOCAB}" in said
    cli("train", recipe, *change, f"training.num_candidates={tiny.VOCAB}", "training.record_allocation_every=1")
    (record, *_) = Path("runs/own/allocation").iterdir()
    assert max(token for ids in pq.read_table(record)["top_ids"].to_pylist() for token in ids) < tiny.VOCAB


def test_labels_that_name_no_teacher_are_counted(recipe: Path) -> None:
    rows = [json.loads(line) for line in Path("prompts.jsonl").read_text().splitlines()]
    labels = ["math", "code", "maths", None]
    rows = [{**row, "domain": labels[place % 4]} for place, row in enumerate(rows)]
    Path("labelled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.warns(UserWarning, match="6 of 24 prompts .*'domain' .*'maths'"):
        cli("train", recipe, "prompts.path=labelled.jsonl", "--dry-run")


def test_a_dry_run_says_what_checkpoints_take_and_warns_where_the_disk_is_too_small(
    recipe: Path, models: Path, tmp_path: Path
) -> None:
    cli("train", recipe, "training.save_steps=1")
    saved = Path("runs/own/checkpoints/checkpoint-2")
    size = sum((saved / name).stat().st_size for name in ("model.safetensors", "optimizer.pt"))
    here = prepare(load_recipe(recipe)).memory
    assert checkpoint_bytes(here.work, here.setup) == pytest.approx(size, rel=0.3)  # files have headers
    one = ["training.save_steps=1", "training.save_total_limit=1", "seeds=[0, 1]", "output=b"]
    said = cli("train", recipe, *one, "--dry-run")
    assert "are free" in said and "at most 3 at a time" in said  # one of each seed, and the one that is written
    large = shutil.copytree(models / "base", tmp_path / "large")
    config = json.loads((large / "config.json").read_text())
    (large / "config.json").write_text(json.dumps(config | {"hidden_size": 2**15, "intermediate_size": 2**23}))
    with pytest.warns(UserWarning, match=r"disk: .*save_total_limit"):
        cli("train", recipe, f"student={large}", "output=c", "--dry-run")


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"args": TrainingArguments(output_dir="unused", use_cpu=True)}, ["TrainingArguments", "TrustMOPDConfig"]),
        ({"train_dataset": None}, ["train_dataset is missing"]),
        ({"train_dataset": "prompts.jsonl"}, ["a str", "load_prompts"]),
        ({"train_dataset": Dataset.from_list([{"prompt": "1"}]).to_iterable_dataset()}, ["IterableDataset", "stream"]),
    ],
)
def test_a_trainer_s_arguments_of_another_type_are_named(
    models: Path, tmp_path: Path, fields: dict[str, object], facts: list[str]
) -> None:
    args = TrustMOPDConfig(output_dir=str(tmp_path / "run"), use_cpu=True)
    given = {"args": args, "train_dataset": tiny.prompts(64), **fields}
    with pytest.raises((TypeError, ValueError)) as error:
        TrustMOPDTrainer(str(models / "base"), {"math": str(models / "math")}, **given)
    assert all(fact in str(error.value) for fact in facts)
    assert ("stream" in str(error.value)) == ("stream" in facts)
