"""Decontamination is exact: it finds what comparing every pair finds, names the rule, and says so in order."""

import json
import os
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prompts.brute_force import brute_force, jaccard, letters_and_digits, ngrams

from trustmopd.prompts.decontaminate import decontaminate, removal_table
from trustmopd.prompts.ngrams import read_corpus, words_of

SHARED = Path(__file__).parents[3] / "shared" / "data"


def agree(candidates, comparison, *, parents=None, n=5, threshold=0.8):
    found = decontaminate(candidates, comparison, parents=parents, ngram=n, threshold=threshold)
    kept, removed = brute_force(candidates, comparison, parents=parents, n=n, threshold=threshold)
    assert found.kept == kept
    assert [tuple(removal) for removal in found.removed] == removed
    return found


# Few words, so that drawn texts overlap at every similarity; case, width, accents and underscores among them.
WORDS = st.sampled_from(["a", "A", "b", "c", "ß", "ss", "é", "e\u0301", "x_y", "_", "１", "1", "½", "...", "!", "a-b"])
TEXTS = st.lists(st.lists(WORDS, max_size=14).map(" ".join), max_size=9)


@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS, st.data(), st.integers(1, 6), st.sampled_from([0.05, 0.3, 1 / 3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]))
@example(["a b c d e f"] * 3, [], None, 5, 0.8)
def test_drawn_corpora_give_what_comparing_every_pair_gives(candidates, comparison, data, n, threshold):
    agree(candidates, comparison, n=n, threshold=threshold)
    if data is not None:
        texts = st.one_of(st.none(), st.lists(WORDS, max_size=8).map(" ".join))
        parents = data.draw(st.lists(texts, min_size=len(candidates), max_size=len(candidates)))
        agree(candidates, comparison, parents=parents, n=n, threshold=threshold)


@settings(max_examples=100, deadline=None)
@given(TEXTS, TEXTS, TEXTS)
def test_what_was_kept_is_kept_again_and_more_comparison_texts_never_keep_more(candidates, comparison, more):
    kept = [candidates[i] for i in decontaminate(candidates, comparison).kept]
    assert decontaminate(kept, comparison).kept == list(range(len(kept)))
    clean = {candidates[i] for i in decontaminate(candidates, comparison, within=False).kept}
    stricter = {candidates[i] for i in decontaminate(candidates, comparison + more, within=False).kept}
    assert stricter <= clean


def replaced(text, words, rng):
    """The text with `words` of its words, spread over it, changed."""
    pieces = text.split()
    for place in rng.sample(range(len(pieces)), min(words, len(pieces))):
        pieces[place] = f"zz{rng.randrange(10**6)}"
    return " ".join(pieces)


def near_duplicates(texts, rng):
    """Each text with a few words changed or its end cut: similarities on both sides of 0.8."""
    return [
        replaced(text, rng.choice([0, 1, 1, 2, 3]), rng) if rng.random() < 0.7 else text[: int(len(text) * 0.85)]
        for text in texts
    ]


def both_sides_of_the_threshold(first, second):
    similar = [jaccard(ngrams(a, 5), ngrams(b, 5)) for a, b in zip(first, second, strict=True)]
    assert sum(0.8 <= value < 1 for value in similar) > len(similar) / 20
    assert sum(0.6 < value < 0.8 for value in similar) > len(similar) / 20


def prose(count, rng, length=(4, 70)):
    """Word frequencies as in prose, so that common n-grams repeat between texts."""
    vocabulary = [f"word{i}" for i in range(400)]
    weights = [1 / (i + 1) for i in range(400)]
    return [" ".join(rng.choices(vocabulary, weights, k=rng.randint(*length))) for _ in range(count)]


def test_a_thousand_texts_with_planted_near_duplicates_give_what_comparing_every_pair_gives():
    rng = random.Random(0)
    base = prose(700, rng)
    planted = near_duplicates(base[:250], rng)
    both_sides_of_the_threshold(base[:250], planted)
    candidates = [*base[200:], *planted[100:], *near_duplicates(base[400:500], rng)]
    rng.shuffle(candidates)
    parents = [rng.choice([None, "", *base[:80]]) if rng.random() < 0.3 else None for _ in candidates]
    found = agree(candidates, [*base[:200], *planted[:100]], parents=parents)
    assert all(count > 0 for count in found.counts.values())


@pytest.mark.timeout(600)
@pytest.mark.skipif(not SHARED.is_dir(), reason="the real pools are not beside the checkout")
def test_real_prompts_with_planted_near_duplicates_give_what_comparing_every_pair_gives():
    def texts(path, column):
        return [json.loads(line)[column] for line in (SHARED / path).read_text(encoding="utf-8").splitlines()]

    rng = random.Random(0)
    mathematics = texts("gsm8k/train.jsonl", "question")[:1400]
    evaluation = [*texts("ifeval/input_data.jsonl", "prompt"), *texts("gsm8k/test.jsonl", "question")[:600]]
    planted = near_duplicates(evaluation[:700], rng)
    both_sides_of_the_threshold(evaluation[:700], planted)
    candidates = [*mathematics, *planted, *near_duplicates(mathematics[:300], rng)]
    rng.shuffle(candidates)
    found = agree(candidates, evaluation)
    assert all(count > 10 for count in found.counts.values()), found.counts


SIX = "the sum of the first six odd numbers"


@pytest.mark.parametrize(
    ("candidates", "comparison", "parents", "rules"),
    [
        ([SIX], [SIX.upper().replace(" ", "-")], None, ["cross_exact"]),
        ([SIX, SIX + "!"], [], None, ["within_exact"]),
        ([SIX, SIX], [SIX], None, ["cross_exact", "cross_exact"]),
        # 4 of 5 shared n-grams, one text longer by a word: 0.8 exactly
        (["a b c d e f g h i"], ["a b c d e f g h"], None, ["cross_ngram"]),
        (["a b c d e f g h", "a b c d e f g h i"], [], None, ["within_ngram"]),
        # exact before n-gram: it is like the comparison text, and equal to an accepted one only if that was accepted
        (["a b c d e f g h i j", "a b c d e f g h i j"], ["a b c d e f g h i j k"], None, ["cross_ngram"] * 2),
        # the parent is compared, with comparison texts and with the parents of accepted candidates
        (["new one"], [SIX], [SIX], ["cross_exact"]),
        (["new one", "another one"], [], [SIX, SIX], ["within_exact"]),
        (["new one", "another one"], [], [None, "new one"], []),
        (["new one", "another one"], [], ["", " "], []),
        (["new one", "another one"], [], ["...", "!!"], []),
    ],
)
def test_rules_and_their_order(candidates, comparison, parents, rules):
    assert [removal.rule for removal in agree(candidates, comparison, parents=parents).removed] == rules


def test_a_removed_candidate_removes_nobody():
    """Each is like its neighbour and not like the next but one: the middle goes, so the last stays."""
    words = [f"w{i}" for i in range(60)]
    first, middle, last = (" ".join(words[i : i + 40]) for i in (0, 3, 6))
    assert jaccard(ngrams(first, 5), ngrams(last, 5)) < 0.8 <= jaccard(ngrams(middle, 5), ngrams(last, 5))
    assert agree([first, middle, last], []).kept == [0, 2]


def test_texts_shorter_than_an_n_gram_are_judged_by_the_exact_rule_alone():
    assert agree(["two words", "Two Words.", "two other words"], []).kept == [0, 2]
    assert agree(["one two three four"], ["one two three four five", "zero one two three four"]).kept == [0]


def test_the_first_match_in_order_is_the_one_reported():
    text = "a b c d e f g h i j"
    further, nearer = text + " k l", text + " k"
    assert agree([text], [further, nearer]).removed == [(0, "cross_ngram", nearer, 6 / 7, 1)]
    assert agree([text], [further, nearer], threshold=0.7).removed == [(0, "cross_ngram", further, 6 / 8, 0)]


def test_exactness_survives_more_words_than_an_integer_has_digits_for():
    """Packed as digits of one number, five words of a large vocabulary need more than 64 bits."""
    rng = random.Random(1)
    filler = [" ".join(f"v{rng.randrange(10**9)}" for _ in range(200)) for _ in range(60)]
    assert len({word for text in filler for word in text.split()}) ** 5 > 2**64
    planted = near_duplicates(filler[:40], rng)
    agree([*filler[40:], *planted], filler[:40])
    agree([*filler[40:], *planted], filler[:40], n=9)


def templated(count, rng, words=40, holes=(20,)):
    texts = []
    for _ in range(count):
        pieces = [f"t{i}" for i in range(words + rng.choice((0, 0, 1, 5)))]
        for hole in holes:
            pieces[hole] = f"n{rng.randrange(10**9)}"
        texts.append(" ".join(pieces))
    return texts


def test_texts_of_one_template_give_what_comparing_every_pair_gives():
    rng = random.Random(4)
    texts = [*templated(60, rng), *templated(60, rng, holes=(10, 30)), *templated(60, rng, 44), *templated(60, rng, 52)]
    rng.shuffle(texts)
    for found in (agree(texts[60:], texts[:60]), agree(texts, [])):
        assert len(found.kept) > 60 and len(found.removed) > 10


@pytest.mark.timeout(60)
def test_thousands_of_texts_of_one_template_just_below_the_threshold_are_not_compared_one_by_one():
    """20,000 of them are 200 million pairs, all at 0.756: minutes if each were compared, and a second if not."""
    texts = [" ".join([*(f"t{k}" for k in range(20)), f"n{i}", *(f"u{k}" for k in range(19))]) for i in range(20_000)]
    assert jaccard(ngrams(texts[0], 5), ngrams(texts[1], 5)) == 31 / 41
    assert len(decontaminate(texts, []).kept) == 20_000


def test_keys_are_the_letters_and_digits_for_every_character_there_is():
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    assert [c for c in every if bool(re.fullmatch(r"\w", c)) != (c.isalnum() or c == "_")] == []
    sample = "".join(every[:0x3000]) + "ﬁ ½ Straße １２ İ x_y"
    assert read_corpus([sample], 5).keys == [letters_and_digits(sample)]
    assert words_of("Don't PANIC: ½ x_y") == ["don", "t", "panic", "1", "2", "x_y"]


def test_no_two_different_n_grams_share_a_number():
    corpus = read_corpus(texts := prose(80, random.Random(2)), 3)
    for index, text in enumerate(texts):
        assert len(corpus.grams_of(index)) == len(ngrams(text, 3))
        for other in range(index):
            shared = len(set(corpus.grams_of(index).tolist()) & set(corpus.grams_of(other).tolist()))
            assert shared == len(ngrams(text, 3) & ngrams(texts[other], 3))


def test_threads_and_the_seed_of_hashes_change_nothing(tmp_path):
    rng = random.Random(3)
    base = prose(300, rng)
    candidates, comparison = [*base[150:], *near_duplicates(base, rng)], base[:150]
    expected = decontaminate(candidates, comparison)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: decontaminate(candidates, comparison), range(8)):
            assert found == expected
    (tmp_path / "texts.json").write_text(json.dumps([candidates, comparison]))
    script = (
        "import json, sys; from trustmopd.prompts.decontaminate import decontaminate; "
        "found = decontaminate(*json.load(open(sys.argv[1]))); print(json.dumps([found.kept, found.removed]))"
    )
    for threads, seed in (("1", "0"), ("4", "7")):
        said = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "texts.json")],
            env={**os.environ, "OMP_NUM_THREADS": threads, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert json.loads(said) == [expected.kept, [list(removal) for removal in expected.removed]]


def test_the_table_has_the_columns_of_the_paper():
    found = decontaminate([SIX, SIX, "else"], ["else"])
    assert removal_table({"pool": found}).to_csv().splitlines() == [
        "pool,candidates,within exact,within n-gram,cross exact,cross n-gram,kept",
        "pool,3,1,0,1,0,1",
    ]


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((["a"], []), {"parents": []}, "0 parents.* 1 "),
        ((["a"], []), {"ngram": 0}, "ngram = 0.*5"),
        ((["a"], []), {"threshold": 0}, "threshold = 0.*0.8"),
        ((["a"], []), {"threshold": float("nan")}, "threshold = nan"),
    ],
)
def test_what_cannot_be_screened_is_named(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        decontaminate(*arguments, **options)


def test_nothing_against_nothing_is_nothing():
    assert agree([], []).kept == []
    assert agree(["", "?", "a"], [""]).kept == [2]


def test_parents_may_be_an_array():
    found = decontaminate(["a", "b"], ["p"], parents=np.array(["p", "q"]))
    assert found.kept == [1]
