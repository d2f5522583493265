"""Quotas are filled whenever they can be, and proportions add up."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trustmopd.prompts.quotas import Bucket, Need, apportion, bucket_of, fill, shuffled

pytestmark = pytest.mark.unit

BUCKETS = st.tuples(st.integers(0, 6), st.integers(1, 5)).map(lambda pair: Bucket(pair[0], sum(pair)))
NEEDS = st.builds(Need, st.sampled_from([None, 1, 2]), BUCKETS)
ROWS = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 2)), max_size=6)


def fits(need, row):
    words, constraints = row
    return need.constraints in (None, constraints) and need.length.low <= words < need.length.high


def most(needs, rows):
    """The largest number of needs that can be filled, by trying every assignment."""
    for size in range(min(len(needs), len(rows)), 0, -1):
        for chosen in itertools.combinations(needs, size):
            if any(
                all(fits(need, rows[place]) for need, place in zip(chosen, places, strict=True))
                for places in itertools.permutations(range(len(rows)), size)
            ):
                return size
    return 0


@settings(max_examples=200, deadline=None)
@given(st.lists(NEEDS, max_size=5), ROWS)
def test_as_many_needs_are_filled_as_any_assignment_fills(needs, rows):
    found = fill(needs, rows)
    taken = [place for place in found if place is not None]
    assert len(taken) == len(set(taken)) == most(needs, rows)
    assert all(fits(need, rows[place]) for need, place in zip(needs, found, strict=True) if place is not None)


def test_rows_change_hands_along_a_chain_so_that_the_last_need_is_filled():
    """Each need but the last also fits the next row; only handing on fills them all."""
    needs = [Need(length=Bucket(i, i + 2)) for i in range(30)] + [Need(length=Bucket(0, 1))]
    assert None not in fill(needs, [(words, 0) for words in range(31)])
    assert fill(needs, [(words, 0) for words in range(30)]).count(None) == 1


def test_a_large_shortage_is_told_soon():
    needs = [Need(length=Bucket(0, 5))] * 4000 + [Need()] * 4000
    assert fill(needs, [(words % 50, 0) for words in range(20_000)]).count(None) == 2000


@pytest.mark.timeout(20)
def test_thousands_of_needs_of_hundreds_of_kinds_that_all_can_be_filled_are_filled_soon():
    """What composition asks: a fine bucket, less the words of each block."""
    rng = random.Random(3)
    rows = [(min(600, int(rng.lognormvariate(4, 0.7))), 0) for _ in range(5200)]
    blocks = [rng.randint(5, 110) for _ in range(5000)]
    needs = [
        Need(length=bucket_of(words + block, range(20, 700, 20)).without(block))
        for (words, _), block in zip(rng.sample(rows, 5000), blocks, strict=True)
    ]
    assert len(set(needs)) > 200
    assert None not in fill(needs, rows)


@given(st.integers(0, 10_000), st.dictionaries(st.text(max_size=3), st.integers(0, 100), min_size=1, max_size=8))
def test_shares_add_up_and_are_within_one_of_their_proportion(total, weights):
    if not sum(weights.values()):
        return
    shares = apportion(total, weights)
    assert sum(shares.values()) == total
    for key, weight in weights.items():
        assert abs(shares[key] - total * weight / sum(weights.values())) < 1
        assert weight or not shares[key]


def test_a_set_as_large_as_the_matched_one_has_its_very_counts():
    assert apportion(1579, {1: 700, 2: 500, 3: 379}) == {1: 700, 2: 500, 3: 379}


@pytest.mark.parametrize(
    ("words", "text"), [(0, "0 to 31 words"), (31, "0 to 31 words"), (32, "32 to 63 words"), (64, "64 words or more")]
)
def test_buckets_begin_at_their_edge(words, text):
    assert str(bucket_of(words, [32, 64])) == text


def test_the_order_is_the_seeds_and_does_not_move_when_a_row_is_added():
    names = [str(i) for i in range(50)]
    first = shuffled(names, 0, "rows", names)
    assert first == shuffled(reversed(names), 0, "rows", reversed(names)) != names
    assert first != shuffled(names, 1, "rows", names)
    more = [*names, "new"]
    assert [name for name in shuffled(more, 0, "rows", more) if name != "new"] == first
