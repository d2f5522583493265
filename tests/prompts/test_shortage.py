"""A quota that cannot be filled says which bucket is short, by how much, and why."""

import pytest
from prompts import pools
from prompts.test_build import built

pytestmark = pytest.mark.unit


@pytest.fixture
def config(tmp_path):
    return pools.small(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["categories.math.count=100"], ["wanted of pool 'math', short by 17", "ask for 130 of the 113 in 'math'"]),
        (
            ["categories.math.count=999999999"],
            ["categories.math.count = 999999999: pool 'math' has 120 rows, short by 999999879"],
        ),
        (["categories.math-if.count=31"], ["'math-if'", *("31", "30", "short by 1", "block_after")]),
    ],
)
def test_a_quota_that_cannot_be_filled_says_which_bucket_is_short_and_by_how_much(config, overrides, words):
    with pytest.raises(ValueError) as refusal:
        built(config, *overrides)
    assert [word for word in words if word not in str(refusal.value)] == [], refusal.value


def test_a_shortage_names_what_screening_took(config):
    text = pools.mathematics(120)[0]["question"]
    with pytest.raises(ValueError) as refusal:
        built(config, "categories.math.count=84")
    words = ("7 of the 120", "'math'", "cross_exact 7", "'0'", repr(text[:60]), "comparison.evaluation, id '0'")
    assert [word for word in words if word not in str(refusal.value)] == [], refusal.value
    with pytest.raises(ValueError) as refusal:
        built(config, "categories.math.count=91", "comparison={}")
    assert "short by 1" in str(refusal.value) and "screen" not in str(refusal.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["categories.math-code.like=blocks", "length_edges=[30]"],
            ("'math-code'", "0 to 29 words of problem and block together"),
        ),
        (
            ["categories.math-if.like=blocks", "length_edges=[40, 41]"],
            ("'math-if'", "40 to 40 words of problem and block together"),
        ),
    ],
)
def test_a_shortage_of_composed_prompts_says_that_problem_and_block_share_the_bucket(config, overrides, words):
    """All problems are long, and what a short prompt has left for its problem is short."""
    pools.write_jsonl(config.parent / "math.jsonl", pools.mathematics(120, low=60, high=90))
    with pytest.raises(ValueError) as refusal:
        built(config, *overrides)
    assert [word for word in (*words, "`length_edges`") if word not in str(refusal.value)] == [], refusal.value


def test_a_shortage_names_the_bucket_of_lengths(tmp_path):
    path = pools.small(tmp_path)
    pools.write_jsonl(tmp_path / "math.jsonl", pools.mathematics(120, low=5, high=10))
    matched = pools.write_jsonl(tmp_path / "like.jsonl", pools.mathematics(10, seed=3, low=50, high=60))
    with pytest.raises(ValueError, match=r"'math', 0 constraints, 32 to 63 words.*short by 20"):
        built(path, f"pools.like={{path: {matched}, columns: {{prompt: question}}}}", "categories.math.like=like")
