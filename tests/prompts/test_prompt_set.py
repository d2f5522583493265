"""Prompt sets: read from wherever they lie, checked row by row, named by their prompts."""

import csv
import gzip
import json

import pytest
import tiny
import yaml
from datasets import Dataset, DatasetDict, Json
from prompts import pools

from trustmopd.prompts.build import build
from trustmopd.prompts.build_config import load_config
from trustmopd.prompts.prompt_card import write_prompt_set
from trustmopd.prompts.prompt_set import check_labels, check_prompts, load_prompts, of_one_kind, prompt_hash

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def prompts():
    return tiny.prompts(6)


def write_jsonl(dataset, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in dataset))


def stored(dataset, kind, folder):
    """The prompt set as a user may have it."""
    if kind == "save_to_disk":
        dataset.save_to_disk(str(folder / "set"))
        return folder / "set"
    if kind == "DatasetDict":
        DatasetDict({"train": dataset, "test": dataset.select([0])}).save_to_disk(str(folder / "set"))
        return folder / "set"
    (folder / "set").mkdir()
    if kind.endswith("parquet"):
        dataset.to_parquet(str(folder / "set" / "a.parquet"))
    else:
        write_jsonl(dataset, folder / "set" / "a.jsonl")
    if kind.endswith("jsonl.gz"):
        (folder / "set" / "a.jsonl.gz").write_bytes(gzip.compress((folder / "set" / "a.jsonl").read_bytes()))
        (folder / "set" / "a.jsonl").unlink()
    return folder / "set" if kind.startswith("folder") else next((folder / "set").iterdir())


@pytest.mark.parametrize(
    "kind",
    [
        *("parquet", "jsonl", "jsonl.gz", "folder of parquet", "folder of jsonl", "folder of jsonl.gz"),
        *("save_to_disk", "DatasetDict"),
    ],
)
def test_a_prompt_set_reads_back_as_it_was_written(prompts, tmp_path, kind, capfd):
    path = stored(prompts, kind, tmp_path)
    capfd.readouterr()
    found = load_prompts(path)
    assert capfd.readouterr().err == "", "bars of datasets"
    assert found["prompt"][:] == prompts["prompt"][:]
    assert found["id"][:] == prompts["id"][:]
    assert prompt_hash(found) == prompt_hash(prompts)


def test_the_files_of_a_folder_are_read_in_the_order_of_their_names(prompts, tmp_path):
    prompts.select(range(3, 6)).to_parquet(str(tmp_path / "b.parquet"))
    prompts.select(range(3)).to_parquet(str(tmp_path / "a.parquet"))
    assert load_prompts(tmp_path)["id"][:] == prompts["id"][:]


def test_a_folder_of_both_kinds_of_file_is_refused(prompts, tmp_path):
    prompts.select(range(3)).to_parquet(str(tmp_path / "a.parquet"))
    write_jsonl(prompts.select(range(3, 6)), tmp_path / "b.jsonl")
    with pytest.raises(ValueError, match=rf"{tmp_path}.*\.jsonl, \.parquet"):
        load_prompts(tmp_path)


@pytest.mark.parametrize("name", ["{}.jsonl", "gsm8k-{}-00000-of-00001.jsonl", "{}ing.jsonl"])
def test_of_a_folder_with_several_splits_only_the_one_that_is_asked_for_is_read(prompts, tmp_path, name):
    """A recipe with {path: folder, split: train} must not train on test rows."""
    write_jsonl(prompts.select(range(4)), tmp_path / name.format("train"))
    write_jsonl(prompts.select(range(4, 6)), tmp_path / name.format("test"))
    assert load_prompts(tmp_path)["id"][:] == prompts["id"][:4]
    assert load_prompts(tmp_path, split="test")["id"][:] == prompts["id"][4:]
    assert load_prompts(tmp_path, split="all")["id"][:] == prompts["id"][4:] + prompts["id"][:4]
    with pytest.raises(ValueError, match=rf"{tmp_path} .*'validation'.*test(ing)?, train"):
        load_prompts(tmp_path, split="validation")
    (tmp_path / name.format("train")).unlink()
    with pytest.raises(ValueError, match="'train'.*test"):
        load_prompts(tmp_path)
    assert len(load_prompts(tmp_path / name.format("test"))) == 2, "a file is read whole"


@pytest.mark.parametrize("word", ["part", "prompts", "use_with_caution"])
def test_shards_of_a_name_that_is_no_split_are_read(prompts, tmp_path, word):
    for shard in range(2):
        write_jsonl(prompts.select(range(3 * shard, 3 * shard + 3)), tmp_path / f"{word}-0000{shard}-of-00002.jsonl")
    assert load_prompts(tmp_path)["id"][:] == prompts["id"][:]
    write_jsonl(prompts, tmp_path / "other-00000-of-00001.jsonl")
    with pytest.raises(ValueError, match=rf"'train'.*{word}"):
        load_prompts(tmp_path)


def test_a_name_with_two_splits_is_taken_for_neither(prompts, tmp_path):
    write_jsonl(prompts, tmp_path / "train_dev.jsonl")
    with pytest.raises(ValueError, match=r"'train'.*train\+dev"):
        load_prompts(tmp_path)
    write_jsonl(prompts.select([0]), tmp_path / "train.jsonl")
    assert len(load_prompts(tmp_path)) == 1


def test_a_file_of_no_split_beside_files_of_one_is_refused(prompts, tmp_path):
    for name in ("train.jsonl", "more.jsonl"):
        write_jsonl(prompts, tmp_path / name)
    with pytest.raises(ValueError, match=r"train.*more\.jsonl"):
        load_prompts(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("set.jsonl", b""), ("set.jsonl", b"\n \n"), ("set.jsonl.gz", gzip.compress(b"", mtime=0)), ("set.csv", b"")),
        *(("set.parquet", b""), ("set.json", b"[]"), ("set.csv", b"prompt\n"), ("set.txt", b"a")),
        *(("set.parquet", b"PAR1 cut short"), ("set.jsonl", b'{"prompt": "a"}\n{"pro'), ("empty/readme.md", b"a")),
    ],
)
def test_a_prompt_file_without_rows_or_that_cannot_be_read_is_named(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path = path.parent if path.suffix == ".md" else path
    with pytest.raises(ValueError, match=rf"prompts: .*{path.name}"):
        load_prompts(path)


def test_what_a_csv_file_calls_na_or_null_is_text(tmp_path):
    (tmp_path / "a.csv").write_text("prompt,domain\nNA,math\nnull,\nNone,nan\n")
    found = load_prompts(tmp_path / "a.csv")
    assert found.to_dict() == {"prompt": ["NA", "null", "None"], "domain": ["math", "", "nan"]}
    check_prompts(found)


def test_a_split_of_a_stored_set_is_found_by_name(prompts, tmp_path):
    path = stored(prompts, "DatasetDict", tmp_path)
    assert len(load_prompts(path, split="test")) == 1
    with pytest.raises(ValueError, match="validation"):
        load_prompts(path, split="validation")


def test_a_set_that_is_nowhere_is_named():
    with pytest.raises(FileNotFoundError, match=r"nobody/nothing.*trustmopd data build"):
        load_prompts("nobody/nothing")


@pytest.mark.parametrize(
    "prompt",
    [
        "Say hi.",
        [{"role": "user", "content": "Say hi."}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hi."}],
    ],
)
def test_text_and_messages_are_prompts(prompt):
    check_prompts(Dataset.from_dict({"prompt": [prompt] * 2}))


TALK, TURN = [{"role": "user", "content": "6 × 7?", "name": "ann"}], [{"role": "user", "content": "6 and 7 is"}]
LONG = "x" * 6_000_000  # datasets takes types from the first 10 MB


@pytest.mark.parametrize(
    ("files", "texts"),
    [
        ({"a.jsonl": [TALK, "6 and 7 is"]}, [1]),
        ({"a.jsonl": ["6 and 7 is", TALK, "42", '"quoted"', "null"]}, [0, 2, 3, 4]),
        ({"a.json": [TALK, "6 and 7 is", TALK]}, [1]),
        ({"a.jsonl": ["6 and 7 is"], "b.jsonl": [TALK]}, [0]),
        ({"a.jsonl": [TALK], "b.jsonl": ["6 and 7 is"]}, [1]),
        ({"a.jsonl": [LONG, LONG, "6 and 7 is", TALK]}, [0, 1, 2]),
        ({"a.jsonl": [[{"role": "user", "content": LONG}], [{"role": "user", "content": LONG}], "6 and 7 is"]}, [2]),
    ],
)
def test_plain_texts_among_conversations_become_user_turns_wherever_they_stand(tmp_path, files, texts):
    for name, given in files.items():
        rows = [{"prompt": prompt, **({"id": f"p{i}"} if i else {})} for i, prompt in enumerate(given)]
        if name.endswith(".json"):
            (tmp_path / name).write_text(json.dumps(rows))
        else:
            write_jsonl(rows, tmp_path / name)
    given = [prompt for prompts in files.values() for prompt in prompts]
    with pytest.warns(UserWarning, match=rf"{len(texts)} of {len(given)} "):
        found = load_prompts(tmp_path)
    expected = [[{"role": "user", "content": p}] if i in texts else p for i, p in enumerate(given)]
    assert found["prompt"][:] == expected, "and a message keeps its own keys, no others"
    check_prompts(found)
    found.save_to_disk(str(tmp_path / "stored"))
    assert load_prompts(tmp_path / "stored")["prompt"][:] == expected


def test_a_dataset_that_holds_both_kinds_is_turned_too_and_others_are_left_alone(prompts):
    mixed = Dataset.from_dict({"prompt": [TALK, "6 and 7 is"], "id": ["a", "b"]}, on_mixed_types="use_json")
    with pytest.warns(UserWarning, match="1 of 2 "):
        found = of_one_kind({"eval": mixed.select([1, 0])})["eval"]
    assert found.to_list() == [{"id": "b", "prompt": TURN}, {"id": "a", "prompt": TALK}]
    texts = Dataset.from_dict({"prompt": ["a", "b"]})
    odd = Dataset.from_dict({"prompt": [TALK, TURN]}, on_mixed_types="use_json")
    for other in (prompts, texts, odd, texts.cast_column("prompt", Json()), None, [{"prompt": "a"}]):
        assert of_one_kind(other) is other


@pytest.mark.parametrize("written", [json.dumps(TURN), json.dumps(TURN, indent=1), str(TURN)])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "beside a conversation"])
def test_a_conversation_written_out_as_text_is_refused(tmp_path, written, kind):
    path = tmp_path / ("a.csv" if kind == "csv" else "a.jsonl")
    if kind == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["prompt"], [written]])
    else:
        write_jsonl([{"prompt": written}, *([{"prompt": TALK}] if kind != "jsonl" else [])], path)
    with pytest.raises(ValueError, match=r"row 0 .*as text"):
        check_prompts(load_prompts(path))


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        (None, "a"),
        ("", "a"),
        ("\n\t ", "a"),
        ([], [{"role": "user", "content": "a"}]),
        (None, [{"role": "user", "content": "a"}]),
        ([{"role": None, "content": "a"}], [{"role": "user", "content": "a"}]),
        ([{"content": "a"}], [{"role": "user", "content": "a"}]),
        ([{"role": "user", "content": None}], [{"role": "user", "content": "a"}]),
        ([{"role": "user", "content": ""}], [{"role": "user", "content": "a"}]),
        ([{"role": "user", "content": " \n"}], [{"role": "user", "content": "a"}]),
        (
            [{"role": "user", "content": [{"type": "text", "text": " "}]}],
            [{"role": "user", "content": [{"text": "a"}]}],
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": "add"}],
            [{"role": "user", "content": "a", "tool_calls": None}],
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [{"text": "a"}]}]),
    ],
)
def test_the_first_malformed_prompt_is_named_by_its_row(bad, good):
    with pytest.raises(ValueError, match=r"row 2 .*'role': 'user'"):
        check_prompts(Dataset.from_dict({"prompt": [good, good, bad, bad]}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("image", "a.png"), ("images", ["a"]), ("tools", [{"name": "f"}]), ("chat_template_kwargs", {"a": 1})],
)
def test_a_column_that_is_not_read_is_refused_by_its_name(name, value):
    check_prompts(Dataset.from_dict({"prompt": ["a"], name: [None]}))
    with pytest.raises(ValueError, match=f"1 of 2 .*'{name}'.*emove"):
        check_prompts(Dataset.from_dict({"prompt": ["a", "b"], name: [None, value]}))


@pytest.mark.parametrize("kind", ["image", "image_url", "audio"])
def test_a_part_that_is_no_text_is_refused_by_row_and_type(kind):
    text, other = {"type": "text", "text": "What is this?"}, {"type": kind, "text": None}
    seen, unseen = ([{"role": "user", "content": parts}] for parts in ([text], [other, text]))
    check_prompts(Dataset.from_dict({"prompt": [seen]}))
    with pytest.raises(ValueError, match=f"row 1 .*'{kind}'.*text.*Remove"):
        check_prompts(Dataset.from_dict({"prompt": [seen, unseen]}))


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        ({"prompt": []}, "empty.*Check its path"),
        ({"question": ["a"] * 8}, "no column 'prompt'.*question.*Rename"),
        ({"prompt": [7] * 8}, "row 0.*'7'.*non-empty text"),
        ({"prompt": [[{"role": "user"}]] * 8}, "row 0.*'content'"),
    ],
)
def test_a_set_without_prompts_is_refused(columns, facts):
    with pytest.raises(ValueError, match=facts):
        check_prompts(Dataset.from_dict(columns))


def test_the_message_about_a_malformed_prompt_stays_short():
    with pytest.raises(ValueError) as refusal:
        check_prompts(Dataset.from_dict({"prompt": [[{"role": None, "content": "x" * 10_000}]]}))
    assert len(str(refusal.value)) < 500


def test_labels_that_name_teachers_pass_and_the_first_other_one_is_named(prompts):
    check_labels(prompts, "domain", ["math", "code", "if"])
    with pytest.raises(ValueError, match=r"2 of 6 .*'code' in row 1.* math, if"):
        check_labels(prompts, "domain", ["math", "if"])
    with pytest.raises(ValueError, match=r"'skill'.*id, prompt, domain, capabilities"):
        check_labels(prompts, "skill", ["math"])


def test_the_hash_follows_prompts_and_their_order_and_nothing_else(prompts):
    name = prompt_hash(prompts)
    assert prompt_hash(prompts.select(range(6))) == name
    assert prompt_hash(prompts.remove_columns(["id", "domain", "capabilities"])) == name
    assert prompt_hash(prompts.select(range(5))) != name
    assert prompt_hash(prompts.select(range(5, -1, -1))) != name
    assert prompt_hash(Dataset.from_dict({"prompt": ["a\nb"]})) != prompt_hash(
        Dataset.from_dict({"prompt": ["a", "b"]})
    )
    assert prompt_hash(Dataset.from_dict({"prompt": ["ä"]})) != prompt_hash(Dataset.from_dict({"prompt": ["a"]}))


def test_a_set_whose_first_ten_megabytes_have_no_constraints_reads_back(tmp_path):
    """datasets takes the types of JSON from its first 10 MB, and those of an empty list are nobody's."""
    long = [{"question": f"{i}" * 2_100_000} for i in range(1, 7)]
    path = pools.small(tmp_path)
    pools.write_jsonl(tmp_path / "math.jsonl", long)
    overrides = ["categories.math.count=6", "format=jsonl"]
    config = yaml.safe_load(path.read_text())
    config["categories"] = {name: config["categories"][name] for name in ("math", "if")}
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    built = build(load_config(path, overrides))
    folder = write_prompt_set(built)
    assert (folder / "prompts.jsonl").stat().st_size > 12e6
    for where in (folder, folder / "prompts.jsonl"):
        assert load_prompts(where).to_list() == built.records


def test_a_file_of_ones_own_may_change_its_types_after_ten_megabytes(tmp_path):
    rows = [{"prompt": "x" * 6_000_000, "note": []}] * 2 + [{"prompt": "y", "note": [{"a": 1}]}]
    path = pools.write_jsonl(tmp_path / "a.jsonl", rows)
    pools.write_jsonl(tmp_path / "card.json", [{"schema_version": 1, "files": {"a.jsonl": "of another day"}}])
    assert load_prompts(path).to_list() == rows
