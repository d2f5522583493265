"""Texts as sets of word n-grams, and as keys for exact comparison: what decontamination compares."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+")
_LARGEST = 2**63 - 1


def words_of(text: str) -> list[str]:
    r"""Runs of `\w` after NFKC and case folding."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _key(words: list[str]) -> str:
    r"""The letters and digits: equal keys are equal texts. `\w` is a letter, a digit or `_`, so nothing between words
    counts."""
    return "".join(words).replace("_", "")


@dataclass(frozen=True)
class Corpus:
    """The distinct n-grams of each text as integers, smaller ones in fewer texts; and each text's exact key.

    N-grams are numbered by sorting, not hashed: two share a number only if they are the same words.
    """

    keys: list[str]
    grams: NDArray[np.int32]  # of text i, ascending: grams[starts[i] : starts[i + 1]]
    starts: NDArray[np.int64]
    shared: int  # n-grams below this number occur in one text only, and can join no two
    distinct: int

    def grams_of(self, text: int) -> NDArray[np.int32]:
        return self.grams[self.starts[text] : self.starts[text + 1]]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.starts)


def read_corpus(texts: Iterable[str], ngram: int) -> Corpus:
    vocabulary: defaultdict[str, int] = defaultdict()
    vocabulary.default_factory = vocabulary.__len__
    keys: list[str] = []
    numbered: list[NDArray[np.int32]] = []
    for text in texts:
        words = words_of(text)
        keys.append(_key(words))
        numbered.append(np.fromiter(map(vocabulary.__getitem__, words), dtype=np.int32, count=len(words)))
    lengths = np.fromiter(map(len, numbered), dtype=np.int64, count=len(numbered))
    flat = np.concatenate([*numbered, np.empty(0, np.int32)])
    del numbered
    grams, text_of = _windows(flat, lengths, ngram, max(1, len(vocabulary)))
    return _sets(keys, grams, text_of)


def _windows(
    words: NDArray[np.int32], lengths: NDArray[np.int64], ngram: int, vocabulary: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Every n-gram of every text as one integer, equal for equal words alone; and the text that it is in.

    Words are packed as digits of a number. Before it outgrows 64 bits, the prefixes seen so far are renumbered.
    """
    text_of = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    windows = max(0, len(words) - ngram + 1)
    inside = text_of[:windows] == text_of[len(words) - windows :]  # not across the border of two texts
    grams, largest = words[:windows][inside].astype(np.int64), vocabulary - 1
    for offset in range(1, ngram):
        if largest > (_LARGEST - vocabulary) // vocabulary:
            grams = np.unique(grams, return_inverse=True)[1]
            largest = max(0, len(grams) - 1)
        grams *= vocabulary
        grams += words[offset : offset + windows][inside]
        largest = largest * vocabulary + vocabulary - 1
    return np.unique(grams, return_inverse=True)[1], text_of[:windows][inside]


def _sets(keys: list[str], grams: NDArray[np.int64], window_of: NDArray[np.int32]) -> Corpus:
    """Each text's n-grams once, renumbered from rare to common: a pair of similar texts then shares a rare one."""
    low = 32  # bits of an n-gram's number, beside the text's in one sortable integer
    pairs = np.sort(window_of.astype(np.int64) << low | grams)
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]  # np.unique hashes integers, and is many times slower here
    text_of, grams = pairs >> low, pairs & (2**low - 1)
    texts_with = np.bincount(grams)
    order = np.argsort(texts_with, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    pairs = np.sort(text_of << low | rank[grams])
    starts = np.zeros(len(keys) + 1, np.int64)
    np.cumsum(np.bincount(text_of, minlength=len(keys)), out=starts[1:])
    return Corpus(
        keys=keys,
        grams=(pairs & (2**low - 1)).astype(np.int32),
        starts=starts,
        shared=int(np.count_nonzero(texts_with == 1)),
        distinct=len(order),
    )
