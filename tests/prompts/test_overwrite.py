"""What a user has on disk is not lost to an output that was named in haste."""

import pytest
from prompts import pools
from prompts.test_data_cli import run

from trustmopd.prompts.prompt_set import load_prompts
from trustmopd.util.files import write_text

pytestmark = pytest.mark.unit


def everything(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(folder, *arguments):
    """What is said, when nothing on disk has changed for it."""
    before = everything(folder)
    said = run(*arguments, code=1)
    assert everything(folder) == before
    return said


def test_overwrite_deletes_no_folder_that_holds_anything_but_a_prompt_set(tmp_path):
    config = pools.small(tmp_path)
    build = "build", config, "--overwrite"
    notes = tmp_path / "out" / "notes.txt"
    write_text(notes, "mine")
    assert "it holds notes.txt" in refused(tmp_path, *build)
    notes.unlink()
    write_text(tmp_path / "out" / "card.json", '{"schema_version": 1, "name": "a card of something else"}')
    assert "it lacks removed.json" in refused(tmp_path, *build)
    (tmp_path / "out" / "card.json").unlink()
    run(*build)
    run(*build, "format=jsonl")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "prompts.jsonl", "removed.json", "card.json", "README.md"
    }  # fmt: skip
    (tmp_path / "out" / "more").mkdir()
    assert "it holds more" in refused(tmp_path, *build)


@pytest.mark.parametrize("name", ["pools.math", "comparison.evaluation"])
def test_overwrite_never_deletes_what_the_set_is_made_from(tmp_path, name):
    config = pools.small(tmp_path)
    run("build", config)
    again = ("build", config, "--overwrite", f"{name}.path={tmp_path / 'out'}", f"{name}.columns.prompt=prompt")
    assert f"{name} is read from" in refused(tmp_path, *again)


def test_a_link_to_a_set_stays_a_link_when_the_set_is_replaced(tmp_path):
    config = pools.small(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    run("build", config)
    run("build", config, "--overwrite", "seed=1")
    assert (tmp_path / "out").is_symlink() and len(load_prompts(tmp_path / "real")) == 100
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_current_folder_is_refused_before_any_work(tmp_path, monkeypatch):
    config = pools.small(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "output = . is the current folder" in refused(tmp_path, "build", config, "output=.", "--overwrite")


def screen(source, out, *more):
    return "decontaminate", source, "--against", source.with_name("eval.jsonl"), "--out", out, *more


@pytest.fixture
def source(tmp_path):
    pools.write_jsonl(tmp_path / "eval.jsonl", [{"prompt": "b"}])
    pools.write_jsonl(tmp_path / "pool.jsonl", [{"prompt": text} for text in "abc"])
    return tmp_path / "pool.jsonl"


def test_screening_replaces_a_file_only_when_asked(tmp_path, source):
    out, listing = tmp_path / "kept.jsonl", tmp_path / "kept.removed.json"
    for there in (out, listing):
        write_text(there, "mine")
        assert str(there) in refused(tmp_path, *screen(source, out))
        there.unlink()
    write_text(out, "mine")
    run(*screen(source, out, "--overwrite"))
    assert load_prompts(out)["prompt"][:] == ["a", "c"] and listing.exists()


@pytest.mark.parametrize("name", ["pool.jsonl", "./pool.jsonl", "link.jsonl", "eval.jsonl"])
def test_screening_never_replaces_what_it_reads(tmp_path, source, name):
    (tmp_path / "link.jsonl").symlink_to(source)
    said = refused(tmp_path, *screen(source, f"{tmp_path}/{name}", "--overwrite"))
    assert "among the files that are read" in said


def test_the_listing_of_removals_never_replaces_what_is_read(tmp_path, source):
    write_text(tmp_path / "pool.removed.json", '[{"prompt": "a"}]')
    said = refused(
        tmp_path, *screen(source, tmp_path / "pool.parquet", "--overwrite", "--against", tmp_path / "pool.removed.json")
    )
    assert "pool.removed.json would be written" in said
