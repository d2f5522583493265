"""A set says where everything in it is from, what it was held against, and what each removed row repeats."""

import json
from collections import Counter

import pytest
from prompts import pools
from prompts.test_data_cli import run

from trustmopd.prompts.prompt_set import load_prompts

pytestmark = pytest.mark.unit


def card_and_page(folder):
    return json.loads((folder / "card.json").read_text()), (folder / "README.md").read_text()


@pytest.mark.parametrize("nothing", ["null", "{}"])
def test_a_comparison_set_that_is_not_at_hand_can_be_left_out_and_the_card_says_so(tmp_path, nothing):
    """As a user of a shipped config does who lacks the file of one evaluation set."""
    path = pools.small(tmp_path)
    (tmp_path / "evaluation.jsonl").unlink()
    assert "evaluation.jsonl" in run("build", path, code=1)
    said = run("build", path, f"comparison.evaluation={nothing}")
    assert "comparison: evaluation" in said
    card, page = card_and_page(tmp_path / "out")
    assert (card["comparison"], card["comparison_left_out"], card["comparison_texts"]) == ({}, ["evaluation"], 0)
    assert "0 comparison texts" in page and "comparison: evaluation" in page
    assert card["decontamination"]["pools"]["math"]["kept"] == 120


def test_all_comparison_sets_are_left_out_by_one_empty_mapping_and_a_full_card_speaks_of_none(tmp_path):
    path = pools.small(tmp_path)
    run("build", path)
    card, page = card_and_page(tmp_path / "out")
    assert list(card["comparison"]) == ["evaluation"] and card["comparison_left_out"] == []
    assert "7 comparison texts (evaluation)" in page and "comparison: evaluation" not in page
    said = run("build", path, "comparison={}", "--overwrite")
    card, page = card_and_page(tmp_path / "out")
    assert (card["comparison"], card["comparison_left_out"]) == ({}, ["evaluation"])
    assert "comparison: evaluation" in said and "comparison: evaluation" in page


def test_a_file_that_empties_the_comparison_it_inherits_names_what_it_left_out(tmp_path):
    pools.small(tmp_path)
    (tmp_path / "bare.yaml").write_text("extends: config.yaml\ncomparison: {}")
    assert "comparison: evaluation" in run("build", tmp_path / "bare.yaml")


def test_a_comparison_of_ones_own_replaces_the_inherited_one(tmp_path):
    path = pools.small(tmp_path)
    mine = pools.write_jsonl(tmp_path / "mine.jsonl", [{"prompt": pools.mathematics(120)[50]["question"]}])
    said = run("build", path, "comparison={}", f"comparison.mine.path={mine}")
    card, _ = card_and_page(tmp_path / "out")
    assert (list(card["comparison"]), card["comparison_left_out"]) == (["mine"], ["evaluation"])
    assert card["decontamination"]["pools"]["math"]["cross_exact"] == 1
    assert "comparison: evaluation" in said


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("comparison.evalaution=null", "comparison.evalaution = null"),
        ("comparison.evalaution={}", "comparison.evalaution = null"),
        ("categories.maths=null", "categories.maths = null"),
    ],
)
def test_leaving_out_what_is_not_there_is_refused_with_what_is(tmp_path, override, words):
    said = run("build", pools.small(tmp_path), override, code=1)
    assert words in said and ("evaluation" in said or "math, code, if, math-if, math-code" in said)
    assert not (tmp_path / "out").exists()


def test_a_category_is_dropped_by_its_name(tmp_path):
    said = run("build", pools.small(tmp_path), "categories.math-if=null", "categories.if=null")
    assert all(part in said for part in ("45 prompts", "20 math", "15 code", "10 math-code"))
    card, _ = card_and_page(tmp_path / "out")
    assert list(card["categories"]) == ["math", "code", "math-code"] and list(card["sources"]) == ["math", "code"]
    dropped = [f"categories.{name}=null" for name in ("math", "code", "if", "math-if", "math-code")]
    assert "categories" in run("build", pools.small(tmp_path), *dropped, "output=none", code=1)


def test_a_filter_of_a_config_is_dropped_by_an_empty_mapping(tmp_path):
    run("build", pools.small(tmp_path), "pools.code.where={}")
    assert card_and_page(tmp_path / "out")[0]["sources"]["code"]["rows"] == 120


def test_a_comparison_set_on_the_hub_is_named_offline_with_both_ways_out(tmp_path):
    said = run("build", pools.small(tmp_path), "comparison.evaluation.path=nobody/nothing", code=1)
    assert "comparison.evaluation.path=FILE" in said and "comparison.evaluation=null" in said
    assert "=null" not in run("build", pools.small(tmp_path), "pools.math.path=nobody/nothing", code=1)


def test_a_removed_row_names_the_row_that_it_repeats(tmp_path):
    path = pools.small(tmp_path)
    mathematics, code = pools.mathematics(120), pools.code(120)
    code[0]["question"] = mathematics[50]["question"] + "!"
    code[2]["metadata"]["original_instruction"] = code[1]["metadata"]["original_instruction"]
    code[4]["metadata"]["original_instruction"] = mathematics[3]["question"]
    pools.write_jsonl(tmp_path / "code.jsonl", code)
    run("build", path)
    removed = json.loads((tmp_path / "out" / "removed.json").read_text())["removed"]
    where = {(each["pool"], each["source_id"]): (each["matched_source"], each["matched_id"]) for each in removed}
    assert where == {("math", str(i)): ("comparison.evaluation", str(i)) for i in range(7)} | {
        ("code", "Algorithm_0"): ("pools.math", "50"),
        ("code", "Algorithm_2"): ("pools.code", "Algorithm_1"),
        ("code", "Algorithm_4"): ("comparison.evaluation", "3"),
    }


def test_screening_a_file_names_file_and_row_that_a_removed_row_repeats(tmp_path):
    source = pools.write_jsonl(tmp_path / "pool.jsonl", [{"prompt": text} for text in ("a", "b", "c", "B!", "d")])
    first = pools.write_jsonl(tmp_path / "first.jsonl", [{"prompt": "x"}, {"prompt": "y"}])
    second = pools.write_jsonl(tmp_path / "second.jsonl", [{"prompt": "z"}, {"prompt": "C"}])
    run("decontaminate", source, "--against", first, "--against", second, "--out", tmp_path / "kept.jsonl")
    removed = json.loads((tmp_path / "kept.removed.json").read_text())["removed"]
    assert [(each["row"], each["matched_source"], each["matched_row"]) for each in removed] == [
        (2, second, 1),
        (3, source, 1),
    ]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_composed_prompts_name_the_row_that_their_block_is_from_and_no_others_do(tmp_path, kind):
    blocks = pools.constrained(30)
    path = pools.small(tmp_path)
    run("build", path, f"format={kind}")
    given = Counter()
    for row in load_prompts(tmp_path / "out").to_list():
        if row["id"].startswith("math-if/"):
            assert row["source"] == str(tmp_path / "math.jsonl")
            assert row["block_source"] == str(tmp_path / "blocks.jsonl")
            block = blocks[int(row["block_source_id"])]["constraint_block"]
            assert row["prompt"][-1]["content"].endswith("\n\n" + block)
            given[row["block_source_id"]] += 1
        else:
            assert row["block_source"] is row["block_source_id"] is None
    assert given == {str(i): 1 for i in range(30)}


def test_the_page_sets_words_left_and_figures_right(tmp_path):
    run("build", pools.small(tmp_path))
    page = card_and_page(tmp_path / "out")[1].splitlines()
    for head, rule in (
        ("| category | prompts | capabilities | pool | followed by |", "| --- | ---: | --- | --- | --- |"),
        ("| pool | from | licence | rows |", "| --- | --- | --- | ---: |"),
    ):
        assert page[page.index(head) + 1] == rule


def test_show_names_capabilities_and_lengths_as_the_card_does(tmp_path):
    run("build", pools.small(tmp_path))
    card, _ = card_and_page(tmp_path / "out")
    seen = run("show", tmp_path / "out", "--examples", 0)
    lengths = Counter()
    for category in card["categories"].values():
        assert f"│ {'-'.join(category['capabilities'])} │ {category['count']} │" in seen
        lengths.update(category["prompts_by_length"])
    for length, count in lengths.items():
        assert f"│ {length} │ {count} │" in seen


def test_a_category_has_no_slash_in_its_name_because_ids_begin_with_it(tmp_path):
    said = run("build", pools.small(tmp_path), "categories.a/b={pool: math, count: 5, capabilities: [math]}", code=1)
    assert "categories.a/b" in said
