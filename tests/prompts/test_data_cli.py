"""A user's day with prompt sets at the command line."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import command
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from prompts import pools

from trustmopd.prompts.prompt_set import SCHEMA, load_prompts

pytestmark = pytest.mark.unit

run = partial(command.run, "data")


def test_help_has_an_example_for_every_verb_and_no_verb_needs_torch(tmp_path):
    for verb in ("build", "decontaminate", "show"):
        assert f"Example: trustmopd data {verb}" in run(verb, "--help")
    script = (
        "import sys; from typer.testing import CliRunner; from trustmopd.cli import app\n"
        "result = CliRunner().invoke(app, ['data', 'build', sys.argv[1]])\n"
        "sys.exit(result.exit_code or 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(pools.small(tmp_path))]
    assert subprocess.run(command, check=False).returncode == 0


def test_build_then_show(tmp_path):
    said = run("build", pools.small(tmp_path), "seed=3")
    assert "Built 100 prompts: 20 math, 15 code, 25 if, 30 math-if, 10 math-code." in said
    assert "│ math │ 120 │ 0 │ 0 │ 7 │ 0 │ 113 │" in said
    assert "Blocks: 30 of the 30 rows of 'blocks' have one, such as" in said
    assert json.loads((tmp_path / "out" / "card.json").read_text())["seed"] == 3
    seen = run("show", tmp_path / "out", "--examples", "2")
    assert "100 prompts in" in seen and "│ math-if │ 30 │ 30.0% │" in seen
    assert seen.count("derive the answer mathematically") == 2
    assert run("show", tmp_path / "out" / "prompts.parquet", "--examples", "0").count("derive the answer") == 0


def test_a_set_is_not_built_over_another_before_any_work(tmp_path):
    path = pools.small(tmp_path)
    run("build", path)
    (tmp_path / "math.jsonl").unlink()
    said = run("build", path, code=1)
    assert str(tmp_path / "out") in said and "--overwrite" in said
    assert "math.jsonl" in run("build", path, "--overwrite", code=1)
    assert len(load_prompts(tmp_path / "out")) == 100, "the old set stays when the new one cannot be built"


def test_an_interrupted_build_says_what_is_kept_and_it_is_no_checkpoint(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("trustmopd.prompts.build.decontaminate", interrupted)
    said = run("build", pools.small(tmp_path), code=130)
    assert "checkpoint" not in said
    assert not (tmp_path / "out").exists()


def test_show_prints_prompts_as_they_are(tmp_path):
    path = pools.write_jsonl(tmp_path / "set.jsonl", [{"prompt": "Write [bold]x[/bold] and [/red]."}])
    assert "Write [bold]x[/bold] and [/red]." in run("show", path)
    assert "unlabelled" in run("show", path)


def test_show_neither_draws_emoji_nor_obeys_what_a_prompt_tells_the_terminal(tmp_path):
    rows = [{"prompt": "Press :key: \x1b[2J\x07 and\r go \x9b1m on.", "domain": ":smile:\x1b[31m"}]
    said = run("show", pools.write_jsonl(tmp_path / "set.jsonl", rows))
    assert "Press :key: \\x1b[2J\\x07 and\\r go \\x9b1m on." in said
    assert said.count(":smile:\\x1b[31m") == 2 and "\x1b" not in said


@pytest.mark.parametrize(
    ("row", "category"),
    [
        ({"domain": 3}, "3"),
        ({"domain": 0}, "0"),
        ({"domain": None}, "unlabelled"),
        ({"capabilities": "math", "domain": "code"}, "math"),
        ({"capabilities": [1, 2]}, "1-2"),
        ({"constraints": 2}, "unlabelled"),
        ({"constraints": "three words"}, "unlabelled"),
    ],
)
def test_show_takes_the_columns_of_other_peoples_sets(tmp_path, row, category):
    path = pools.write_jsonl(tmp_path / "set.jsonl", [{"prompt": "Sum 1 to 9.", **row}])
    assert f"│ {category} │ 1 │ 100.0% │ 4 │ 4 │ 0: 1 │" in run("show", path)


def test_show_takes_prompts_from_another_column_and_a_missing_one_is_named_with_those_that_are_there(tmp_path):
    rows = [{"question": "Sum 1 to 9.", "prompt": "", "meta": {"asked": [{"role": "user", "content": "Hi there."}]}}]
    path = pools.write_jsonl(tmp_path / "set.jsonl", rows)
    assert "│ unlabelled │ 1 │ 100.0% │ 4 │" in run("show", path, "--column", "question")
    assert "│ unlabelled │ 1 │ 100.0% │ 2 │" in run("show", path, "--column", "meta.asked")
    for column in ("questions", "meta.said"):
        said = run("show", path, "--column", column, code=1)
        assert "set.jsonl" in said and repr(column) in said and "question, prompt, meta" in said and "--column" in said
    assert "--column" in run("show", pools.write_jsonl(tmp_path / "b.jsonl", [{"text": "a"}]), code=1)


def test_show_draws_no_bars(tmp_path):
    path = pools.write_jsonl(tmp_path / "set.jsonl", [{"prompt": "Sum 1 to 9."}])
    command = [sys.executable, "-m", "trustmopd", "data", "show", path]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stderr == ""


def test_show_counts_the_text_of_a_message_in_parts(tmp_path):
    content = [{"type": "text", "text": "What is"}, {"type": "text", "text": "this?"}]
    path = pools.write_jsonl(tmp_path / "set.jsonl", [{"prompt": [{"role": "user", "content": content}]}])
    said = run("show", path)
    assert "│ unlabelled │ 1 │ 100.0% │ 3 │" in said and "What is" in said and "this?" in said


def test_decontaminate_keeps_rows_as_they_are_and_says_what_went(tmp_path):
    rows = pools.code(30)
    rows[4]["question"] = rows[3]["question"].upper()
    comparison = pools.write_jsonl(tmp_path / "eval.jsonl", [{"problem": rows[0]["question"] + "!"}])
    source = pools.write_jsonl(tmp_path / "pool.jsonl", rows)
    for out in (tmp_path / "lines" / "kept.jsonl", tmp_path / "table" / "kept.parquet"):
        said = run(
            *("decontaminate", source, "--column", "question", "--against", f"{comparison}:problem", "--out", out),
            *("--parent", "metadata.original_instruction"),
        )
        assert "│ pool.jsonl │ 30 │ 1 │ 0 │ 1 │ 0 │ 28 │" in said
        assert load_prompts(out).to_list() == [row for i, row in enumerate(rows) if i not in (0, 4)]
        removed = json.loads((out.parent / "kept.removed.json").read_text())
        assert [(each["row"], each["rule"]) for each in removed["removed"]] == [(0, "cross_exact"), (4, "within_exact")]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["pools.math.path=nobody/nothing"], ["pools.math", "nobody/nothing", "pools.math.path=FILE"]),
        (["pools.math.path=gone.jsonl"], ["pools.math", "gone.jsonl"]),
        (["pools.math.columns.prompt=problem"], ["math.jsonl, line 1", "'problem'", "question"]),
        (["comparison.evaluation.columns.prompt=x"], ["comparison.evaluation", "'x'"]),
        (["categories.math.pool=maths"], ["categories.math.pool = 'maths'", "math, code, if, blocks"]),
        (["categories.math.counts=3"], ["categories.math.counts = 3", "`count`"]),
        (["categories.math.count=0"], ["categories.math.count = 0"]),
        (["categories.math-if.derivation=true"], ["categories.math-if", "`blocks`", "`derivation`"]),
        (["categories.math-if.like=math"], ["like: blocks"]),
        (["pools.math.licence=null"], ["pools.math.licence", "prompts"]),
        (["pools.blocks.licence=null"], ["pools.blocks.licence", "its blocks"]),
        (["length_edges=[10, 5]"], ["length_edges = [10, 5]", "ascending"]),
        (["seed=one"], ["seed = 'one'"]),
        (["decontamination.threshold=2"], ["decontamination.threshold = 2"]),
        (["format=csv"], ["format = 'csv'", "parquet, jsonl"]),
    ],
)
def test_a_slip_is_told_in_one_line_and_nothing_is_written(tmp_path, overrides, words):
    said = run("build", pools.small(tmp_path), *overrides, code=1)
    assert [word for word in words if word not in said] == [], said
    assert "Traceback" not in said
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_a_missing_or_broken_config_is_named(tmp_path):
    assert "gone.yaml" in run("build", tmp_path / "gone.yaml", code=1)
    (tmp_path / "list.yaml").write_text("- a")
    assert "list.yaml" in run("build", tmp_path / "list.yaml", code=1)
    (tmp_path / "part.yaml").write_text(yaml.safe_dump({"name": "x", "output": "y", "pools": {"a": {"path": "b"}}}))
    assert "categories" in run("build", tmp_path / "part.yaml", code=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "kept.csv"], "--out kept.csv"),
        (["--out", "kept.jsonl", "--against", "gone.jsonl"], "gone.jsonl"),
        (["--out", "kept.jsonl", "--threshold", "1.5"], "threshold = 1.5"),
        (["--out", "kept.jsonl", "--column", "prompt"], "'prompt'"),
    ],
)
def test_decontaminate_names_what_it_cannot_do_and_writes_nothing(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    pools.write_jsonl(tmp_path / "pool.jsonl", pools.mathematics(3))
    said = run(
        "decontaminate", "pool.jsonl", "--column", "question", "--against", "pool.jsonl:question", *arguments, code=1
    )
    assert words in said
    assert [path.name for path in tmp_path.iterdir()] == ["pool.jsonl"]


@pytest.mark.parametrize(
    ("candidates", "against", "words"),
    [
        ("pool.jsonl", "eval.jsonl", "--against eval.jsonl:COLUMN"),
        ("eval.jsonl", "pool.jsonl:question", "--column"),
        ("nobody/nothing", "eval.jsonl:problem", "trustmopd data decontaminate FILE."),
        ("pool.jsonl", "nobody/nothing:problem", "--against FILE:COLUMN."),
    ],
)
def test_decontaminate_gives_remedies_that_it_understands(tmp_path, monkeypatch, candidates, against, words):
    monkeypatch.chdir(tmp_path)
    pools.write_jsonl(tmp_path / "pool.jsonl", pools.mathematics(3))
    pools.write_jsonl(tmp_path / "eval.jsonl", [{"problem": "What is nine?"}])
    said = run("decontaminate", candidates, "--column", "question", "--against", against, "--out", "k.jsonl", code=1)
    assert words in said and ".path=" not in said


def test_build_says_where_a_column_is_named(tmp_path):
    said = run("build", pools.small(tmp_path), "pools.math.columns.prompt=problem", code=1)
    assert "pools.math.columns or pools.math.where" in said and "--column" not in said


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_an_error_does_not_tell_the_terminal_what_a_file_says(tmp_path, kind):
    row = {"\x1b[2Jevil\x9b": "a\x07"}
    path = pools.write_jsonl(tmp_path / "set.jsonl", [row])
    if kind == "parquet":
        path = tmp_path / "set.parquet"
        pq.write_table(pa.Table.from_pylist([row]), path)
    for arguments in (["show", path], ["decontaminate", path, "--against", path, "--out", tmp_path / "k.jsonl"]):
        said = run(*arguments, code=1)
        assert "\\x1b[2Jevil\\x9b" in said and "\x1b" not in said and "\x9b" not in said


def test_the_split_of_candidates_is_not_that_of_what_they_are_compared_with(tmp_path):
    """Test rows that lie in a pool called train must not pass because a comparison folder has a train file too."""
    secret = [{"question": f"How many of the {n} hens of farmer {n} lay no egg on Monday?"} for n in range(5)]
    other = [{"question": "An innocent question about ducks and ponds and rain?"}]
    for name, rows in {"pool/train": secret, "pool/test": other, "exam/train": other, "exam/test": secret}.items():
        pools.write_jsonl(tmp_path / f"{name}.jsonl", rows)
    given = ["decontaminate", tmp_path / "pool", "--column", "question", "--against", f"{tmp_path / 'exam'}:question"]
    said = run(*given, "--out", tmp_path / "kept.jsonl", code=1)
    assert "test, train" in said and "--split" in said
    said = run(*given, "--split", "train", "--out", tmp_path / "kept.jsonl")
    assert f"Compared with 6 texts of {tmp_path / 'exam'} (test.jsonl, train.jsonl)." in said
    assert (tmp_path / "kept.jsonl").read_text() == ""
    listing = json.loads((tmp_path / "kept.removed.json").read_text())
    assert listing["counts"]["cross_exact"] == 5 and listing["compared"][0]["rows"] == 6


def test_a_subset_that_the_folder_does_not_have_is_refused_with_the_way_out(tmp_path):
    path = pools.small(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "math.jsonl").rename(tmp_path / "own" / "math.jsonl")
    given = [f"pools.math.path={tmp_path / 'own'}", "pools.math.subset=nope"]
    said = run("build", path, *given, code=1)
    assert "pools.math" in said and "'nope'" in said and "null" in said
    run("build", path, *given, "pools.math.subset=null")


def test_the_documentation_names_every_column_of_a_set():
    written = (Path(__file__).parents[2] / "docs" / "data.md").read_text().partition("## What is written")[2]
    assert [name for name in SCHEMA.names if f"`{name}`" not in written] == []
