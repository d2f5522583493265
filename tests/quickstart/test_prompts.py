"""Prompt sets and splits: everything from seeds, and nothing of the evaluation in training."""

import random
import subprocess
import sys
from collections import Counter

import pytest

from trustmopd.prompts.prompt_set import check_labels, check_prompts, prompt_hash
from trustmopd.quickstart import DOMAINS, MIXTURES, evaluation_set, parse, prompt_set, prompt_split
from trustmopd.quickstart.prompts import draw, draw_distinct

KINDS = (*DOMAINS, *MIXTURES)


def test_no_evaluation_prompt_is_ever_a_training_prompt():
    rng = random.Random(1)
    train = {draw(kind, rng, "train").prompt for kind in KINDS for _ in range(6000)}
    evaluation = {draw(kind, rng, "evaluation").prompt for kind in KINDS for _ in range(2000)}
    assert len(train) > 20_000 and len(evaluation) > 7_000
    assert train.isdisjoint(evaluation)


@pytest.mark.parametrize("name", ["singlecap", "multicap"])
def test_prompt_sets_hold_train_prompts_alone(name):
    prompts = [row[0]["content"] for row in prompt_set(name, 3000, seed=0)["prompt"]]
    assert len(set(prompts)) == 3000
    assert {prompt_split(prompt) for prompt in prompts} == {"train"}
    assert not set(prompts) & {task.prompt for kind in KINDS for task in evaluation_set(kind, 500)}


@pytest.mark.parametrize("domain", DOMAINS)
def test_each_domain_has_a_thousand_evaluation_and_four_thousand_train_prompts(domain):
    tasks = evaluation_set(domain, 1000)
    assert len({task.prompt for task in tasks}) == 1000
    assert all(prompt_split(task.prompt) == "evaluation" and task.domain == domain for task in tasks)
    assert len(draw_distinct(domain, 4000, random.Random(0), "train")) == 4000


def test_the_split_of_a_prompt_is_fixed_for_good():
    assert [prompt_split(prompt) for prompt in SPLITS] == list(SPLITS.values())


def test_singlecap_is_balanced_and_multicap_mostly_mixed():
    single, mixed = prompt_set("singlecap", 302, seed=3), prompt_set("multicap", 1000, seed=3)
    assert sorted(Counter(single["domain"]).values()) == [100, 101, 101]
    kinds = Counter("+".join(names) for names in mixed["capabilities"])
    assert kinds == {"math": 94, "code": 93, "if": 93, "math+code": 240, "math+if": 240, "code+if": 240}
    assert mixed["domain"].count(None) == 720


def test_a_prompt_set_is_what_the_trainer_reads():
    dataset = prompt_set("singlecap", 30, seed=0)
    assert set(dataset.column_names) == {"id", "prompt", "domain", "capabilities", "source"}
    assert len(set(dataset["id"])) == 30
    check_prompts(dataset)
    check_labels(dataset, "domain", list(DOMAINS))
    row = dataset[0]
    task = parse(row["prompt"][0]["content"])
    assert row["prompt"][0]["role"] == "user"
    assert (row["id"], row["domain"], tuple(row["capabilities"])) == (task.id, task.domain, task.capabilities)


def test_a_seed_is_a_prompt_set_in_every_process():
    here = prompt_hash(prompt_set("multicap", 60, seed=5))
    assert prompt_hash(prompt_set("multicap", 60, seed=5)) == here
    assert prompt_hash(prompt_set("multicap", 60, seed=6)) != here
    code = (
        "from trustmopd.prompts.prompt_set import prompt_hash; from trustmopd.quickstart import prompt_set;"
        "print(prompt_hash(prompt_set('multicap', 60, seed=5)))"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert there == here


def test_a_smaller_evaluation_set_is_the_start_of_a_larger():
    assert evaluation_set("if", 50) == evaluation_set("if", 200)[:50]


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="3000"):
        draw_distinct("math", 3000, random.Random(0), "evaluation")  # there are 2,439 or so
    with pytest.raises(ValueError, match="poetry"):
        evaluation_set("poetry", 10)
    with pytest.raises(ValueError, match="allcap"):
        prompt_set("allcap", 10, seed=0)
    with pytest.raises(ValueError, match="0 prompts"):
        prompt_set("singlecap", 0, seed=0)


# Written down, because a change of the hash would let shipped checkpoints be scored on prompts they were trained on.
SPLITS = {
    "59+63": "train",
    "48+71": "evaluation",
    "sort(drop(htq))": "train",
    "drop(drop(lpko))": "evaluation",
    "quote:eep": "train",
    "curly:fvqyp": "evaluation",
    "rev(25-13)": "train",
    "swap(55+88)": "evaluation",
    "star:91-85": "train",
    "star:30+40": "evaluation",
    "round:sort(nmotwm)": "train",
    "quote:rev(next(ezqc))": "evaluation",
}
