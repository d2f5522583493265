"""The shipped configs, on local files in the upstream schemas: the paper's counts, blocks and proportions."""

import csv
import json
import random
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prompts import pools

from trustmopd.prompts.build import DERIVATION, build
from trustmopd.prompts.build_config import load_config
from trustmopd.prompts.corpora import read_pool
from trustmopd.prompts.prompt_card import write_prompt_set
from trustmopd.prompts.prompt_set import load_prompts
from trustmopd.recipe import load_recipe

CONFIGS = Path(__file__).parents[2] / "recipes" / "data"
PAGE = (CONFIGS.parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
_EXAMPLES = re.findall(r"```yaml.*?\n(.*?)```", PAGE, re.DOTALL)
SHARED = Path(__file__).parents[3] / "shared" / "data"
MULTICAP = {"math": 256, "code": 256, "if": 1579, "math-if": 2131, "code-if": 2980, "math-code": 256}
SINGLECAP = {"math": 1540, "code": 1870, "if": 4048}


def released(category, count):
    """MultiCap's prompts; those with a derivation request are not short."""
    low, high = (80, 120) if category == "math-code" else (5, 60)
    return pools.constrained(count, category=category, low=low, high=high)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Every source of the shipped configs as a file, a little larger than what the sets take; that of which they take
    one file as the folder that holds it."""
    folder = tmp_path_factory.mktemp("upstream")
    rng = random.Random(0)
    open_mopd = []
    for domain, count in (("math", 1600), ("code", 1900), ("instruction", 4100)):
        for i in range(count):
            checkers = rng.choices(pools.CHECKERS, k=rng.randint(1, 3)) if domain == "instruction" else None
            extra = {
                "instruction_id_list": checkers,
                "instruction_kwargs_json": checkers and [json.dumps({"N": 1})] * len(checkers),
            }
            prompt = [{"role": "user", "content": pools.text(rng, 6, 70, f"o{domain}{i}")}]
            open_mopd.append({"domain": domain, "prompt": prompt, "extra_info": extra})
    multicap = [row for name, count in MULTICAP.items() for row in released(name, count)]
    for row in multicap:
        if row["category"] in ("math", "code", "math-code"):
            row |= {"constraint_block": None, "instruction_id_list": [], "kwargs": []}
    evaluation = [
        {name: f"{name} nobody trains on {i}" for name in ("problem", "question", "prompt", "text")} for i in range(3)
    ]
    evaluation = [row | {"question_content": row["text"], "question_concat": row["text"]} for row in evaluation]
    evaluation[0] |= {"problem": pools.mathematics(1, high=120)[0]["question"]}  # found in DeepMath
    (folder / "Open-MOPD-Data" / "rl_prompt_mix").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(open_mopd), folder / "Open-MOPD-Data" / "rl_prompt_mix" / "train.parquet")
    stored = {
        "Sunshine279/TrustMOPD-MultiCap": multicap,
        "zwhe99/DeepMath-103K": pools.mathematics(6000, high=120),
        "KodCode/KodCode-V1": pools.code(7500, high=120),
        "allenai/tulu-3-sft-personas-instruction-following": pools.instructions(11000, low=6, high=90),
    }  # fmt: skip
    paths = {hub: pools.write_jsonl(folder / f"{hub.split('/')[1]}.jsonl", rows) for hub, rows in stored.items()}
    paths["BytedTsinghua-SIA/Open-MOPD-Data"] = str(folder / "Open-MOPD-Data")
    return paths, pools.write_jsonl(folder / "evaluation.jsonl", evaluation), folder


def local(name, files, output):
    """The shipped config with its Hub ids replaced by files, and nothing else."""
    paths, evaluation, folder = files
    config = load_config(CONFIGS / f"{name}.yaml")
    changes = [f"output={output}"]
    for section, sources in (("pools", config.pools), ("comparison", config.comparison)):
        for pool, source in sources.items():
            there = paths.get(source.path) or (evaluation if section == "comparison" else folder / "built-singlecap")
            changes.append(f"{section}.{pool}.path={there}")
    return load_config(CONFIGS / f"{name}.yaml", changes)


def of(built, category):
    return [record for record in built.records if record["id"].split("/")[0] == category]


def counts(built):
    return dict(Counter(record["id"].split("/")[0] for record in built.records))


@pytest.fixture(scope="module")
def singlecap(files):
    built = build(local("singlecap", files, files[2] / "built-singlecap"))
    return built, write_prompt_set(built)


def test_singlecap_has_the_papers_counts_and_a_label_on_every_prompt(singlecap):
    built, folder = singlecap
    assert counts(built) == SINGLECAP and len(built.records) == 7458
    assert Counter(load_prompts(folder)["domain"][:]) == SINGLECAP


def test_multicap_has_the_papers_counts(files, tmp_path):
    built = build(local("multicap", files, tmp_path / "out"))
    assert counts(built) == MULTICAP and len(built.records) == 7458
    assert sum(record["domain"] is None for record in built.records) == 5367


def test_the_transfer_singlecap_matches_the_default_set_by_constraints_and_length(files, singlecap, tmp_path):
    built = build(local("transfer-singlecap", files, tmp_path / "out"))
    assert counts(built) == SINGLECAP
    card = json.loads((write_prompt_set(built) / "card.json").read_text())
    default = json.loads((singlecap[1] / "card.json").read_text())
    for name in SINGLECAP:
        for what in ("prompts_by_constraints", "prompts_by_length"):
            assert card["categories"][name][what] == default["categories"][name][what], (name, what)
    assert card["decontamination"]["pools"]["deepmath"]["cross_exact"] == 1
    assert card["comparison_texts"] == 12 * 3 + 7600
    assert {source["licence"] for source in card["sources"].values()} >= {"MIT", "ODC-BY"}


def test_the_transfer_multicap_keeps_every_block_and_every_checker(files, tmp_path):
    built = build(local("transfer-multicap", files, tmp_path / "out"))
    assert counts(built) == MULTICAP
    for name in ("math-if", "code-if"):
        default, records = released(name, MULTICAP[name]), of(built, name)
        blocks = [record["prompt"][0]["content"].partition("\n\n")[2] for record in records]
        assert Counter(blocks) == Counter(row["constraint_block"] for row in default)
        assert Counter(each["checker"] for record in records for each in record["constraints"]) == Counter(
            checker for row in default for checker in row["instruction_id_list"]
        )
    derived = [record["prompt"][0]["content"].partition("\n\n")[2] for record in of(built, "math-code")]
    assert set(derived) == {DERIVATION}
    assert {record["source"] for record in built.records} == {
        files[0][hub]
        for hub in ("zwhe99/DeepMath-103K", "KodCode/KodCode-V1", "allenai/tulu-3-sft-personas-instruction-following")
    }


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real pools are not beside the checkout")
def test_real_pools_become_a_set_end_to_end(tmp_path):
    config = pools.small(
        tmp_path,
        pools={
            "math": {"path": str(SHARED / "gsm8k/train.jsonl"), "licence": "MIT", "columns": {"prompt": "question"}},
            "code": {
                "path": str(SHARED / "kodcode"),
                "licence": "CC BY-NC 4.0",
                "columns": {"prompt": "question", "id": "question_id", "parent": "metadata.original_instruction"},
            },
            "if": {
                "path": str(SHARED / "self_instruct/user_oriented_instructions.jsonl"),
                "licence": "Apache-2.0",
                "columns": {"prompt": "instruction", "id": "id"},
            },
            "blocks": {
                "path": str(SHARED / "nemo_gym/instruction_following_example.jsonl"),
                "licence": "Apache-2.0",
                "columns": {"id": "id", "checkers": "instruction_id_list", "arguments": "kwargs"},
                "block_after": "\n\n",
            },
        },
        categories={
            "math": {"pool": "math", "count": 1540, "capabilities": ["math"]},
            "if": {"pool": "if", "count": 100, "capabilities": ["if"]},
            "math-if": {"pool": "math", "count": 3, "capabilities": ["math", "if"], "blocks": "blocks"},
            "code-if": {"pool": "code", "count": 3, "capabilities": ["code", "if"], "blocks": "blocks"},
            "math-code": {"pool": "code", "count": 50, "capabilities": ["math", "code"], "derivation": True},
        },
        comparison={
            "gsm8k": {"path": str(SHARED / "gsm8k/test.jsonl"), "columns": {"prompt": "question"}},
            "ifeval": {"path": str(SHARED / "ifeval/input_data.jsonl")},
            "ifbench": {"path": str(SHARED / "ifbench/IFBench_test.jsonl")},
            "aime": {"path": str(SHARED / "aime/matharena_aime_2025.jsonl"), "columns": {"prompt": "problem"}},
            "humaneval": {"path": str(SHARED / "humaneval/HumanEval.jsonl.gz")},
        },
    )
    built = build(load_config(config))
    folder = write_prompt_set(built)
    assert len(load_prompts(folder)) == 1540 + 100 + 3 + 3 + 50
    assert (folder / "README.md").read_text().count("| math | 7,473 |") == 1


def test_the_first_example_of_the_page_builds_from_files_as_it_describes_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problems = [row["question"] for row in pools.mathematics(210)]
    with Path("problems.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["question"], *([text] for text in problems)])
    pools.write_jsonl(Path("writing.jsonl"), pools.instructions(100))
    Path("exam.json").write_text(json.dumps([{"problem": problems[4].upper()}]))
    Path("mine.yaml").write_text(_EXAMPLES[0], encoding="utf-8")
    built = build(load_config("mine.yaml"))
    assert counts(built) == {"math": 200, "if": 100}
    assert built.screenings["problems"].counts["cross_exact"] == 1
    assert write_prompt_set(built) == Path("data/mine")


def test_the_page_about_prompt_sets_lists_each_shipped_one_and_its_example_loads(tmp_path):
    listed = [line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `") and ".yaml" in line]
    assert sorted(listed) == sorted(path.name for path in CONFIGS.glob("*.yaml"))
    (tmp_path / "config.yaml").write_text(_EXAMPLES[1], encoding="utf-8")
    config = load_config(tmp_path / "config.yaml")
    assert list(config.categories) == ["math", "math-if", "math-code"]


def test_a_set_that_another_is_made_from_is_built_first_and_not_sought_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(CONFIGS / "transfer-singlecap.yaml")
    with pytest.raises(FileNotFoundError, match=r"\./data/singlecap.*trustmopd data build"):
        read_pool("pools.default-math", config.pools["default-math"])


def test_the_recipes_find_the_sets_where_the_configs_put_them():
    recipes = CONFIGS.parent / "smollm3-3b"
    wanted = {str(Path(load_recipe(path).prompts.path)) for path in recipes.glob("*.yaml")}
    names = ("singlecap", "multicap", "transfer-singlecap", "transfer-multicap")
    assert wanted == {str(load_config(CONFIGS / f"{name}.yaml").output) for name in names}
