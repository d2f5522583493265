"""A config becomes a prompt set: its counts, its blocks, its proportions, and the same bytes from the same seed."""

import json
from collections import Counter

import pytest
import small_runs
import yaml
from prompts import pools

from trustmopd.prompts.build import DERIVATION, build, with_block
from trustmopd.prompts.build_config import load_config
from trustmopd.prompts.ngrams import words_of
from trustmopd.prompts.prompt_card import write_prompt_set
from trustmopd.prompts.prompt_set import check_prompts, load_prompts, prompt_hash
from trustmopd.prompts.quotas import bucket_of
from trustmopd.recipe import load_recipe
from trustmopd.training.prepare import prepare

COLUMNS = ["id", "prompt", "domain", "capabilities", "source", "source_id", "constraints"]
COLUMNS += ["block_source", "block_source_id"]


def built(path, *overrides):
    return build(load_config(path, overrides))


def by_category(prompt_set):
    found = {}
    for record in prompt_set.records:
        category = record["id"].split("/")[0]
        found.setdefault(category, []).append(record)
    return found


def text_of(record):
    return record["prompt"][-1]["content"]


@pytest.fixture
def config(tmp_path):
    return pools.small(tmp_path)


def test_counts_labels_and_ids(config):
    found = by_category(built(config))
    assert {name: len(records) for name, records in found.items()} == {
        "math": 20,
        "code": 15,
        "if": 25,
        "math-if": 30,
        "math-code": 10,
    }
    assert {(record["domain"], *record["capabilities"]) for records in found.values() for record in records} == {
        ("math", "math"),
        ("code", "code"),
        ("if", "if"),
        (None, "math", "if"),
        (None, "math", "code"),
    }
    records = [record for each in found.values() for record in each]
    assert len({record["id"] for record in records}) == len(records)
    assert len({(record["source"], record["source_id"]) for record in records}) == len(records), "a problem used twice"


def test_blocks_are_copied_verbatim_with_the_exact_multiset_of_checkers_and_their_arguments(config):
    donors = pools.constrained(30)
    records = by_category(built(config))["math-if"]
    problems = {row["question"] for row in pools.mathematics(120)}
    blocks = Counter()
    for record in records:
        problem, _, block = text_of(record).partition("\n\n")
        assert problem in problems
        blocks[block] += 1
    assert blocks == Counter(row["constraint_block"] for row in donors)
    assert Counter(each["checker"] for record in records for each in record["constraints"]) == Counter(
        checker for row in donors for checker in row["instruction_id_list"]
    )
    expected = {
        row["constraint_block"]: list(zip(row["instruction_id_list"], row["kwargs"], strict=True)) for row in donors
    }
    for record in records:
        given = expected[text_of(record).partition("\n\n")[2]]
        found = [(each["checker"], json.loads(each["arguments"])) for each in record["constraints"]]
        assert found == [(checker, {"N": arguments["N"]}) for checker, arguments in given]


def test_the_derivation_block_is_one_and_the_papers(config):
    records = by_category(built(config))["math-code"]
    assert {text_of(record).split("\n\n", 1)[1] for record in records} == {DERIVATION}
    assert DERIVATION.startswith("Alongside your implementation, derive the answer mathematically:")
    assert DERIVATION.endswith("Put the final expression in \\boxed{}.")
    problems = {row["question"] for row in pools.code(120)}
    assert all(text_of(record).split("\n\n", 1)[0] in problems for record in records)


def test_a_block_goes_below_the_users_last_message():
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    messages += [{"role": "user", "content": "c"}]
    assert [m["content"] for m in with_block(messages, "block")] == ["s", "a", "b", "c\n\nblock"]
    assert messages[-1]["content"] == "c"


def test_a_prompt_that_is_answered_already_is_refused_with_its_line_and_a_compared_one_is_not(config, tmp_path):
    turns = [{"role": "user", "content": "Sum 1 to 9."}, {"role": "assistant", "content": "45"}]
    path = pools.write_jsonl(tmp_path / "chat.jsonl", [{"prompt": "One."}, {"messages": turns, "prompt": turns}])
    built(config, f"comparison.evaluation.path={path}", "comparison.evaluation.columns.prompt=prompt")
    with pytest.raises(ValueError, match=r"pools.math: .*chat.jsonl, line 2.*'prompt'.*pools.math.columns"):
        built(config, f"pools.math.path={path}", "pools.math.columns.prompt=prompt")


def test_screened_rows_and_rows_that_a_filter_leaves_out_are_in_no_category(config):
    prompt_set = built(config)
    texts = {text_of(record).split("\n\n")[0] for record in prompt_set.records}
    assert not texts & {row["question"] for row in pools.mathematics(120)[:7]}
    assert not texts & {row["question"] for row in pools.code(120) if row["subset"] == "Prefill"}
    assert prompt_set.screenings["math"].counts["cross_exact"] == 7
    assert prompt_set.pools["code"].read == 120 and len(prompt_set.pools["code"].rows) == 108


def test_pools_are_screened_against_earlier_pools_and_code_by_its_parents(tmp_path):
    path = pools.small(tmp_path)
    mathematics, code = pools.mathematics(120), pools.code(120)
    code[0]["question"] = mathematics[50]["question"]
    code[2]["metadata"]["original_instruction"] = code[1]["metadata"]["original_instruction"] + "!"
    pools.write_jsonl(tmp_path / "code.jsonl", code)
    found = built(path).screenings["code"]
    assert [(removal.index, removal.rule) for removal in found.removed] == [(0, "within_exact"), (2, "within_exact")]


def lengths(records, edges):
    return Counter(bucket_of(len(words_of(text_of(record))), edges) for record in records)


def test_proportions_of_a_matched_set_are_kept_by_constraints_and_length(tmp_path):
    matched = pools.instructions(60, seed=1, low=10, high=60)
    like = {"path": pools.write_jsonl(tmp_path / "like.jsonl", matched), "columns": {"checkers": "constraints"}}
    path = pools.small(tmp_path)
    raw = yaml.safe_load(path.read_text())
    raw["pools"]["default"] = like
    raw["length_edges"] = edges = [20, 40]
    raw["categories"] = {"if": {"pool": "if", "count": 60, "capabilities": ["if"], "like": "default"}}
    path.write_text(yaml.safe_dump(raw))
    records = built(path).records
    cell = lambda constraints, text: (len(constraints), bucket_of(len(words_of(text)), edges))  # noqa: E731
    assert Counter(cell(record["constraints"], text_of(record)) for record in records) == Counter(
        cell(row["constraints"], row["prompt"]) for row in matched
    )


def test_composed_prompts_have_the_lengths_of_the_prompts_their_blocks_are_from(config):
    edges = [20, 40, 60]
    override = "categories.math-if.like=blocks", f"length_edges={edges}"
    records = by_category(built(config, *override))["math-if"]
    donors = {row["constraint_block"]: row["prompt"] for row in pools.constrained(30)}
    for record in records:
        donor = donors[text_of(record).partition("\n\n")[2]]
        assert bucket_of(len(words_of(text_of(record))), edges) == bucket_of(len(words_of(donor)), edges)


@pytest.mark.parametrize("count", [12, 30])
def test_composed_prompts_keep_the_proportions_of_the_prompts_their_blocks_are_from(config, count):
    edges = [35, 50]
    changes = (f"categories.math-if.count={count}", "categories.math-if.like=blocks", f"length_edges={edges}")
    records = by_category(built(config, *changes))["math-if"]

    def cell(constraints, text):
        return len(constraints), bucket_of(len(words_of(text)), edges)

    given = Counter(cell(row["instruction_id_list"], row["prompt"]) for row in pools.constrained(30))
    found = Counter(cell(record["constraints"], text_of(record)) for record in records)
    assert found.total() == count
    for each, number in given.items():
        assert abs(found[each] - number * count / 30) < 1


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_set(config, tmp_path, kind):
    folders = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        overrides = [f"output={tmp_path / name}", f"seed={seed}", f"format={kind}"]
        folder = write_prompt_set(built(config, *overrides))
        folders[name] = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert set(folders["a"]) == {f"prompts.{kind}", "card.json", "README.md", "removed.json"}
    assert folders["a"] == folders["b"]
    assert folders["a"][f"prompts.{kind}"] != folders["c"][f"prompts.{kind}"]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_set_reads_back_as_prompts_with_its_hash_and_every_column(config, kind):
    prompt_set = built(config, f"format={kind}")
    folder = write_prompt_set(prompt_set)
    found = load_prompts(folder)
    check_prompts(found)
    assert found.column_names == COLUMNS
    assert found.to_list() == prompt_set.records
    card = json.loads((folder / "card.json").read_text())
    assert card["prompt_hash"] == prompt_hash(found)
    assert card["schema_version"] == 1


def test_the_card_has_counts_licences_seed_hashes_and_the_table_of_removals(config):
    folder = write_prompt_set(built(config, "seed=5"))
    card, page = json.loads((folder / "card.json").read_text()), (folder / "README.md").read_text()
    assert (card["seed"], card["prompts"], card["comparison_texts"]) == (5, 100, 7)
    assert card["sources"]["code"]["licence"] == "CC-BY-NC-4.0" and card["sources"]["code"]["rows_read"] == 120
    (name,) = card["sources"]["math"]["files_sha256"]
    assert name.endswith("math.jsonl") and len(card["sources"]["math"]["files_sha256"][name]) == 64
    assert card["decontamination"]["pools"]["math"] == {
        "candidates": 120, "within_exact": 0, "within_ngram": 0, "cross_exact": 7, "cross_ngram": 0, "kept": 113
    }  # fmt: skip
    assert card["categories"]["math-if"]["checkers"] == dict(
        sorted(Counter(c for row in pools.constrained(30) for c in row["instruction_id_list"]).items())
    )
    assert "| code | " in page and "CC-BY-NC-4.0" in page
    assert "| math | 120 | 0 | 0 | 7 | 0 | 113 |" in page
    removed = json.loads((folder / "removed.json").read_text())["removed"]
    assert len(removed) == 7 and removed[0]["matched"] == removed[0]["text"]


def test_nothing_is_left_behind_when_writing_fails(config, tmp_path, monkeypatch):
    prompt_set = built(config)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("trustmopd.prompts.prompt_card.write_json", full)
    with pytest.raises(OSError, match="No space"):
        write_prompt_set(prompt_set)
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def test_a_set_that_is_there_is_replaced_only_when_asked(config, tmp_path):
    prompt_set = built(config)
    folder = write_prompt_set(prompt_set)
    old = (folder / "card.json").stat().st_ino
    with pytest.raises(OSError, match="out.*--overwrite"):
        write_prompt_set(prompt_set)
    assert (folder / "card.json").stat().st_ino == old
    write_prompt_set(prompt_set, overwrite=True)
    assert (folder / "card.json").stat().st_ino != old
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".out")] == []


def test_a_built_set_can_be_a_pool_again(config, tmp_path):
    folder = write_prompt_set(built(config))
    source = {
        "path": str(folder / "prompts.parquet"),
        "licence": "mixed",
        "columns": {"id": "id", "checkers": "constraints.checker", "arguments": "constraints.arguments"},
        "where": {"capabilities": [["math", "if"]]},
    }
    category = {"pool": "composed", "count": 30, "capabilities": ["math", "if"]}
    path = pools.small(tmp_path, pools={"composed": source}, categories={"again": category}, comparison={})
    again = built(path, "decontamination.within=false")
    first = [record for record in load_prompts(folder).to_list() if record["capabilities"] == ["math", "if"]]
    assert {text_of(record): record["constraints"] for record in again.records} == {
        text_of(record): record["constraints"] for record in first
    }


def test_the_trainer_trains_on_it_and_diagnose_judges_it_as_it_is(config, tmp_path):
    from trustmopd.training.diagnose import diagnose

    folder = write_prompt_set(built(config))
    path = small_runs.recipe(tmp_path, small_runs.checkpoints(tmp_path), {"max_prompt_length": 40, "max_steps": 1})
    trainer = prepare(load_recipe(path, [f"prompts.path={folder}"])).trainer(0)
    judged = {found.domain: found.rollouts for found in diagnose(trainer, rollouts_per_domain=4).domains}
    assert judged == {"math": 4, "code": 4, "if": 4, "mixed": 4}
    trainer.train()
    assert trainer.state.global_step == 1
