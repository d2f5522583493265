"""Pools are read from every kind of file alike, and what is wrong with one is named with file and line."""

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prompts import pools

from trustmopd.prompts.build_config import Columns, PoolSource
from trustmopd.prompts.corpora import read_pool

pytestmark = pytest.mark.unit

ROWS = [
    {"id": "a", "prompt": "Ein Stück, bitte.", "checkers": ["x:y"], "arguments": [{"N": 2}]},
    {"id": "b", "prompt": 'Say "hi",\nthen stop.', "checkers": [], "arguments": []},
]
COLUMNS = Columns(id="id", checkers="checkers", arguments="arguments")


def stored(rows, kind, folder):
    if kind.endswith(".gz"):
        plain = Path(stored(rows, kind.removesuffix(".gz").removeprefix("folder of "), folder))
        packed = plain.with_name(f"{plain.name}.gz")
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
        return str(folder if kind.startswith("folder") else packed)
    path = folder / f"pool.{kind.removeprefix('folder of ')}"
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows({k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()} for row in rows)
    else:
        pools.write_jsonl(path, rows)
    return str(path.parent if kind.startswith("folder") else path)


KINDS = ["jsonl", "json", "csv", "parquet", "folder of jsonl", "folder of parquet"]
KINDS += ["jsonl.gz", "json.gz", "csv.gz", "folder of jsonl.gz"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_rows(tmp_path, kind):
    pool = read_pool("pools.x", PoolSource(path=stored(ROWS, kind, tmp_path), columns=COLUMNS))
    assert [(row.source_id, row.text, row.constraints) for row in pool.rows] == [
        ("a", ROWS[0]["prompt"], (("x:y", '{"N": 2}'),)),
        ("b", ROWS[1]["prompt"], ()),
    ]
    reference = read_pool(
        "pools.x", PoolSource(path=pools.write_jsonl(tmp_path / "r" / "r.jsonl", ROWS), columns=COLUMNS)
    )
    assert pool.sha256 == reference.sha256


def test_conversations_are_kept_and_only_the_user_is_screened(tmp_path):
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]
    pool = read_pool("pools.x", PoolSource(path=pools.write_jsonl(tmp_path / "a.jsonl", [{"prompt": turns}])))
    assert (pool.rows[0].messages, pool.rows[0].text, pool.rows[0].words) == (turns, "Hi.", 1)


def test_a_block_is_what_follows_the_last_separator_and_rows_without_one_have_none(tmp_path):
    rows = [{"prompt": "problem\n\nmore of it\n\nblock of\nlines"}, {"prompt": "no block"}]
    pool = read_pool("pools.x", PoolSource(path=pools.write_jsonl(tmp_path / "a.jsonl", rows), block_after="\n\n"))
    assert [row.block for row in pool.rows] == ["block of\nlines", None]


GOOD = b'{"prompt": "a", "id": "1"}\n'


@pytest.mark.parametrize(
    ("name", "content", "columns", "words"),
    [
        ("a.jsonl", GOOD + b'{"question": "b", "id": "2"}\n', {}, ("line 2", "'prompt'", "question, id")),
        ("a.jsonl", GOOD + b'{"prompt": 12}\n', {}, ("line 2", "'12'", "int")),
        ("a.jsonl", GOOD + b'{"prompt": null}\n', {}, ("line 2", "NoneType")),
        ("a.jsonl", GOOD + b'{"prompt": "  "}\n', {}, ("line 2", "blank")),
        ("a.jsonl", GOOD + b'\n{"prompt": "caf\xe9"}\n', {}, ("line 3", "UTF-8")),
        ("a.jsonl", GOOD + b'{"prompt": "\\ud800 x"}\n', {}, ("line 2", "surrogate")),
        ("a.jsonl", GOOD + b'{"prompt": "b"\n', {}, ("line 2", "JSON")),
        ("a.jsonl", GOOD + b'["b"]\n', {}, ("line 2", "['b']")),
        ("a.jsonl", GOOD + b'{"prompt": [{"role": "user"}]}\n', {}, ("line 2", "'content'")),
        ("a.jsonl", GOOD + b'{"prompt": ["b"]}\n', {}, ("line 2", "'b'", "message")),
        ("a.jsonl", b'{"prompt": [{"role": "system", "content": "b"}]}\n', {}, ("line 1", "user")),
        ("a.jsonl", GOOD * 2, {"id": "id"}, ("line 2", "'1'", "line 1", "columns.id")),
        ("a.jsonl", b'{"prompt": "a", "id": null}\n', {"id": "id"}, ("line 1", "None", "'id'")),
        ("a.jsonl", b"", {}, ("empty",)),
        ("a.jsonl", b'{"prompt": "a", "c": "x"}\n', {"checkers": "c"}, ("line 1", "'x'", "list")),
        (
            "a.jsonl",
            b'{"prompt": "a", "c": ["x"], "k": []}\n',
            {"checkers": "c", "arguments": "k"},
            ("line 1", "'c'", "'k'"),
        ),
        (
            "a.jsonl",
            b'{"prompt": "a", "c": ["x"], "k": ["{"]}\n',
            {"checkers": "c", "arguments": "k"},
            ("line 1", "'k'", "dictionary"),
        ),
        (
            "a.csv",
            b"prompt,c,k\na,[],[]\n" + b'a,"[""x""]","[""' + b"[" * 100_000 + b'""]"\n',
            {"checkers": "c", "arguments": "k"},
            ("line 3", "'k'", "dictionary"),
        ),
        ("a.csv", b"prompt,c\na," + b"[" * 100_000 + b"\n", {"checkers": "c"}, ("line 2", "list")),
        ("a.json", b'[{"prompt": "a"},\n {"prompt": }]', {}, ("line 2", "JSON")),
        ("a.json", b'{"prompt": "a"}', {}, ("dict", "list")),
        ("a.json", b'[{"prompt": "a"},\n {"prompt": "caf\xe9"}]', {}, ("line 2", "UTF-8")),
        ("a.csv", b"prompt,id\na,1\nb\n", {}, ("line 3", "cells")),
        ("a.csv", b"prompt,id,prompt\na,1,b\n", {}, ("line 1", "'prompt'", "twice")),
        ("a.csv", b"question,id\na,1\n", {}, ("line 2", "'prompt'", "question, id")),
        ("a.parquet", b"PAR1 cut short", {}, ()),
        ("a.txt", b"a", {}, ("'.txt'", ".jsonl", ".csv", ".parquet")),
        ("a.parquet.gz", b"a", {}, ("'.gz'", ".jsonl.gz", ".parquet")),
        ("a.jsonl.gz", GOOD, {}, ("gzip",)),
        ("a.jsonl.gz", gzip.compress(GOOD, mtime=0)[:-9], {}, ("end-of-stream",)),
        ("a.json.gz", gzip.compress(GOOD, mtime=0)[:12] + b"x" * 40, {}, ()),
        ("a.jsonl.gz", gzip.compress(GOOD + b'{"prompt": 12}', mtime=0), {}, ("line 2", "'12'", "int")),
    ],
)
def test_what_is_wrong_with_a_file_is_named_with_its_line(tmp_path, name, content, columns, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as refusal:
        read_pool("pools.math", PoolSource(path=str(tmp_path / name), columns=Columns(**columns)))
    said = str(refusal.value)
    assert [word for word in ("pools.math", name, *words) if word not in said] == [], said
    assert "\n" not in said and len(said) < 400


def test_a_missing_column_of_a_table_is_named_with_those_that_are_there(tmp_path):
    path = stored(ROWS, "parquet", tmp_path)
    with pytest.raises(ValueError, match=r"pool.parquet.*'question'.*id, prompt, checkers"):
        read_pool("pools.x", PoolSource(path=path, columns=Columns(prompt="question")))


def test_a_missing_field_of_a_struct_is_named(tmp_path):
    path = pools.write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "metadata": {"mode": "x"}}])
    with pytest.raises(ValueError, match=r"line 1.*'metadata.parent'.*mode"):
        read_pool("pools.x", PoolSource(path=path, columns=Columns(parent="metadata.parent")))


def test_a_filter_that_no_row_passes_is_named_with_the_rows_read(tmp_path):
    path = pools.write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "subset": "x"}] * 3)
    with pytest.raises(ValueError, match=r"3 rows.*\{'subset': 'y'\}"):
        read_pool("pools.x", PoolSource(path=path, where={"subset": "y"}))


@pytest.mark.parametrize("path", ["missing.jsonl", "./missing", "/missing/folder"])
def test_a_missing_file_is_named(path):
    with pytest.raises(OSError, match=r"pools.x: .*missing"):
        read_pool("pools.x", PoolSource(path=path))


def test_a_folder_of_two_kinds_of_file_is_refused(tmp_path):
    stored(ROWS, "json", tmp_path), stored(ROWS, "csv", tmp_path)
    with pytest.raises(ValueError, match=r"\.csv, \.json"):
        read_pool("pools.x", PoolSource(path=str(tmp_path)))


def test_a_hub_dataset_without_network_is_named_with_the_way_out():
    with pytest.raises(FileNotFoundError, match=r"pools.math: .*nobody/nothing.*pools.math.path=FILE"):
        read_pool("pools.math", PoolSource(path="nobody/nothing"))


def test_only_the_columns_that_are_needed_are_read(tmp_path):
    """DeepMath has 5 GB of solutions beside its questions. An unreadable column does no harm if nobody asks for it."""
    path = tmp_path / "pool.parquet"
    pq.write_table(pa.Table.from_pylist([{"prompt": "a", "solution": "s" * 1000}]), path, compression="none")
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"s" * 900, b"\xff" * 900))  # the statistics and one page of that column
    assert read_pool("pools.x", PoolSource(path=str(path))).rows[0].text == "a"


def test_text_that_is_not_utf8_inside_a_table_is_named_with_row_and_column(tmp_path):
    path = tmp_path / "pool.parquet"
    pq.write_table(
        pa.table({"prompt": ["a", "b", "xxxxxxxx"], "n": [1, 2, 3]}), path, compression="none", use_dictionary=False
    )
    path.write_bytes(path.read_bytes().replace(b"xxxxxxxx", b"\xff" * 8))
    with pytest.raises(ValueError, match=r"pool.parquet, row 2.*'prompt'.*UTF-8"):
        read_pool("pools.x", PoolSource(path=str(path)))


def test_a_cell_of_a_csv_file_may_be_long_and_numbers_in_it_are_text(tmp_path):
    (tmp_path / "a.csv").write_text("prompt,level\n" + "x" * 200_000 + ",5\nb,4\n")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    for name in ("a.csv", "a.csv.gz"):
        pool = read_pool("pools.x", PoolSource(path=str(tmp_path / name), where={"level": 5}))
        assert [len(row.text) for row in pool.rows] == [200_000]


def test_a_struct_that_is_null_has_no_parent(tmp_path):
    rows = [{"prompt": "a", "metadata": {"o": "p"}}, {"prompt": "b", "metadata": None}]
    source = PoolSource(path=pools.write_jsonl(tmp_path / "a.jsonl", rows), columns=Columns(parent="metadata.o"))
    assert [row.parent for row in read_pool("pools.x", source).rows] == ["p", None]


def texts(path, **fields):
    return [row.text for row in read_pool("pools.x", PoolSource(path=str(path), **fields)).rows]


def test_split_chooses_among_the_files_of_a_folder(tmp_path):
    for name in ("train-00001-of-00002", "train-00000-of-00002", "test-00000-of-00001"):
        pools.write_jsonl(tmp_path / f"{name}.jsonl", [{"prompt": name}])
    assert texts(tmp_path, split="train") == ["train-00000-of-00002", "train-00001-of-00002"]
    assert texts(tmp_path, split="test") == ["test-00000-of-00001"]
    with pytest.raises(ValueError, match=r"pools.x: .*'dev'.*test, train"):
        texts(tmp_path, split="dev")
    with pytest.raises(ValueError, match=r"test, train.*pools\.x\.split"):
        texts(tmp_path)
    assert len(texts(tmp_path, split="all")) == 3
    for shard in tmp_path.glob("train-*"):
        shard.unlink()
    assert texts(tmp_path) == ["test-00000-of-00001"]


def test_files_chooses_inside_a_folder(tmp_path):
    for name in ("mix/train", "mix/more", "sft/train"):
        pools.write_jsonl(tmp_path / f"{name}.jsonl", [{"prompt": name}])
    pools.write_jsonl(tmp_path / "notes.jsonl", [{"prompt": "not asked for"}])
    assert texts(tmp_path, files="mix/train.jsonl") == ["mix/train"]
    assert texts(tmp_path / "notes.jsonl", files="mix/train.jsonl") == ["not asked for"]  # one's own file is read whole
    assert texts(tmp_path, files="mix/*.jsonl") == ["mix/more", "mix/train"]
    assert texts(tmp_path, files="**/train.jsonl") == ["mix/train", "sft/train"]


def test_subset_is_a_folder_inside_a_folder_and_a_file_has_none(tmp_path):
    pools.write_jsonl(tmp_path / "main" / "test.jsonl", [{"prompt": "main"}])
    pools.write_jsonl(tmp_path / "socratic" / "test.jsonl", [{"prompt": "socratic"}])
    assert texts(tmp_path, subset="main", split="test") == ["main"]
    assert texts(tmp_path / "main" / "test.jsonl", subset="main") == ["main"]
    with pytest.raises(ValueError, match=r"pools\.x.*'nope'.*main, socratic"):
        texts(tmp_path, subset="nope", split="test")


@pytest.mark.parametrize(
    ("path", "files", "words"),
    [
        ("folder", "mix/test.jsonl", "pools.x: files = 'mix/test.jsonl'"),
        ("folder", "/mix/*.jsonl", "pools.x: files = '/mix/\\*.jsonl'"),
        ("folder", "mix/*", r"\.jsonl, \.txt"),
        ("folder", "mix/*.txt", r"\.txt"),
    ],
)
def test_files_that_choose_nothing_are_named(tmp_path, path, files, words):
    pools.write_jsonl(tmp_path / "folder" / "mix" / "train.jsonl", [{"prompt": "a"}])
    (tmp_path / "folder" / "mix" / "b.txt").write_text("b")
    with pytest.raises(ValueError, match=words):
        texts(tmp_path / path, files=files)
