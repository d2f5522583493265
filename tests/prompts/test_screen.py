"""Rows go through screening as they are, and one that cannot be written is named before the work."""

import datetime
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prompts import pools
from prompts.test_data_cli import run

pytestmark = pytest.mark.unit

ROWS = [{"prompt": "a"}, {"prompt": "b", "answer": 2}, {"prompt": "c", "nested": {"x": [1.5]}}, {"prompt": "d"}]


def screen(folder, rows, out, removed=(), code=0):
    """The candidates, in a Parquet file if they are a table, without those that are among `removed`."""
    source = folder / "pool.jsonl"
    if isinstance(rows, pa.Table):
        source = folder / "pool.parquet"
        pq.write_table(rows, source)
    else:
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    comparison = pools.write_jsonl(folder / "eval.jsonl", [{"prompt": text} for text in removed or ["none of them"]])
    return run("decontaminate", source, "--against", comparison, "--out", folder / out, code=code)


@pytest.mark.parametrize("removed", ["", "a", "bc", "abcd"])
def test_a_table_of_rows_of_different_columns_has_them_all_whichever_are_kept(tmp_path, removed):
    screen(tmp_path, ROWS, "kept.parquet", removed)
    kept = pq.read_table(tmp_path / "kept.parquet")
    assert kept.schema == pa.schema(
        [("prompt", pa.string()), ("answer", pa.int64()), ("nested", pa.struct([("x", pa.list_(pa.float64()))]))]
    )
    nothing = {"answer": None, "nested": None}
    assert kept.to_pylist() == [nothing | row for row in ROWS if row["prompt"] not in removed]


def test_lines_of_rows_of_different_columns_stay_as_they_are(tmp_path):
    screen(tmp_path, ROWS, "kept.jsonl", "a")
    assert [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()] == ROWS[1:]


TABLE = pa.table(
    {
        "prompt": pa.array(["a", "b", "c"]),
        "when": pa.array([None, datetime.datetime(2026, 1, 1), None], pa.timestamp("us", "UTC")),
        "small": pa.array([1, 2, 3], pa.int8()),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        "raw": pa.array([b"\xff", None, b""]),
    }
)


@pytest.mark.parametrize("removed", ["b", "abc"])
def test_a_table_keeps_the_types_of_its_columns(tmp_path, removed):
    screen(tmp_path, TABLE, "kept.parquet", removed)
    kept = pq.read_table(tmp_path / "kept.parquet")
    assert kept.schema.equals(TABLE.schema)
    assert kept.to_pylist() == [row for row in TABLE.to_pylist() if row["prompt"] not in removed]


@pytest.mark.parametrize(
    ("rows", "out", "words"),
    [
        (TABLE.drop(["raw"]), "kept.jsonl", ["pool.parquet, row 1", "datetime"]),
        (TABLE.drop(["when"]), "kept.jsonl", ["pool.parquet, row 0", "bytes"]),
        ([{"prompt": "a"}, {"prompt": "b", "note": "\ud800"}], "kept.jsonl", ["line 2", "surrogates"]),
        ([{"prompt": "a"}, {"prompt": "b", "note": "\ud800"}], "kept.parquet", ["'note'"]),
        ([{"prompt": "a"}, {"prompt": "b", "x": 1}, {"prompt": "c", "x": "one"}], "kept.parquet", ["'x'", "'one'"]),
        ([{"prompt": "a", "x": [2**70]}, {"prompt": "b"}], "kept.parquet", ["'x'"]),
    ],
)
def test_what_cannot_be_written_is_named_before_the_work_and_nothing_is_left(tmp_path, monkeypatch, rows, out, words):
    def screening(*_, **__):
        raise AssertionError("screened before the rows were checked")

    monkeypatch.setattr("trustmopd.prompts.screen.decontaminate", screening)
    said = screen(tmp_path, rows, out, code=1)
    assert [word for word in words if word not in said] == [], said
    assert not [path.name for path in tmp_path.iterdir() if "kept" in path.name]


def test_a_folder_of_tables_that_differ_is_one_table(tmp_path):
    (tmp_path / "pool").mkdir()
    pq.write_table(pa.table({"prompt": ["a", "b"]}), tmp_path / "pool" / "1.parquet")
    pq.write_table(pa.table({"prompt": ["c"], "answer": [1]}), tmp_path / "pool" / "2.parquet")
    comparison = pools.write_jsonl(tmp_path / "eval.jsonl", [{"prompt": "b"}])
    run("decontaminate", tmp_path / "pool", "--against", comparison, "--out", tmp_path / "kept.parquet")
    kept = pq.read_table(tmp_path / "kept.parquet").to_pylist()
    assert kept == [{"prompt": "a", "answer": None}, {"prompt": "c", "answer": 1}]
