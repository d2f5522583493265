"""Exact decontamination: which candidates repeat a comparison text, or a candidate accepted before them.

All pairs are judged, few are looked at. Two sets of n-grams with a Jaccard similarity of t or more share at least
ceil(t·size) of them, so they share one among the rarest size − ceil(t·size) + 1 of each (prefix filtering). An index of
those finds every pair that can match; each is then compared in full.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from trustmopd.prompts.build_config import Decontamination
from trustmopd.prompts.ngrams import Corpus, read_corpus
from trustmopd.recipe.sections import check_fields
from trustmopd.util.text_tables import TextTable, text_table

Rule = Literal["within_exact", "within_ngram", "cross_exact", "cross_ngram"]
Match = TypeVar("Match")
RULES: tuple[Rule, ...] = get_args(Rule)
_SLACK = 1e-9  # filters may let a pair through that comparison then refuses, never the other way round


class Removal(NamedTuple, Generic[Match]):
    """Why one candidate was removed. A parent's match is reported like its candidate's. `matched` is the index of the
    comparison text (cross) or of the candidate (within)."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    rule: Rule
    matched_text: str
    similarity: float
    matched: Match


@dataclass(frozen=True)
class Screening(Generic[Match]):
    kept: list[int]
    removed: list[Removal[Match]]

    @property
    def candidates(self) -> int:
        return len(self.kept) + len(self.removed)

    @property
    def counts(self) -> dict[Rule, int]:
        return {rule: sum(removal.rule == rule for removal in self.removed) for rule in RULES}


def decontaminate(
    candidates: Sequence[str],
    comparison: Sequence[str],
    *,
    parents: Sequence[str | None] | None = None,
    ngram: int = 5,
    threshold: float = 0.8,
    within: bool = True,
) -> Screening[int]:
    r"""Screen candidates in order, against comparison texts and the candidates accepted before.

    Exact: equal letters and digits after NFKC and case folding. N-gram: the sets of word n-grams (`\w+` after the same
    folding) have a Jaccard similarity of `threshold` or more. Rules are tried in the order cross_exact, within_exact,
    cross_ngram, within_ngram, and the first match in the order of the texts is reported. A text of fewer than `ngram`
    words has no n-grams, and only the exact rules judge it.

    `parents` are the texts that candidates were made from (None or blank: none). They are held against comparison
    texts and the parents of accepted candidates by the same rules, each rule after it was tried on the candidate.
    `within=False` leaves out the comparison with accepted candidates.
    """
    check_fields(Decontamination, {"ngram": ngram, "threshold": threshold, "within": within}, "decontamination")
    if parents is not None and len(parents) != len(candidates):
        raise ValueError(
            f"{len(parents)} parents for {len(candidates)} candidates: give one each, None where there is none."
        )
    sources = [comparison, candidates, *([] if parents is None else [[parent or "" for parent in parents]])]
    texts = [text for source in sources for text in source]
    corpus = read_corpus(tqdm(texts, desc="reading texts", disable=None), ngram)
    count, first = len(candidates), len(comparison)
    against = _Index(corpus, threshold)
    for text in range(first):
        against.add(text)
    accepted = [_Index(corpus, threshold) for _ in sources[1:]]

    def parts(index: int) -> Iterator[tuple[int, int]]:
        """The candidate and, if it has one, its parent: which of the two, and its place in the corpus."""
        for part in range(len(accepted)):
            text = first + part * count + index
            if part == 0 or corpus.keys[text]:
                yield part, text

    def judge(index: int) -> Removal[int] | None:
        for kind, find in (("exact", _Index.exact), ("ngram", _Index.similar)):
            for side in ("cross", "within") if within else ("cross",):
                for part, text in parts(index):
                    match = find(against if side == "cross" else accepted[part], text)
                    if match is not None:
                        rule: Rule = f"{side}_{kind}"  # type: ignore[assignment]
                        matched = match[0] if side == "cross" else (match[0] - first) % count
                        return Removal(index, rule, texts[match[0]], match[1], matched)
        return None

    kept, removed = [], []
    for index in tqdm(range(count), desc="screening", disable=None):
        if removal := judge(index):
            removed.append(removal)
            continue
        kept.append(index)
        for part, text in parts(index):
            accepted[part].add(text)
    return Screening(kept, removed)


class _Index:
    """Texts in the order in which they were added, found again by exact key or by similarity."""

    def __init__(self, corpus: Corpus, threshold: float) -> None:
        self.corpus, self.threshold = corpus, threshold
        self.sizes = corpus.sizes
        self.by_key: dict[str, int] = {}
        # n-gram → (size of a text, place of the n-gram in it) → texts: of a template's thousands, one look at
        # size and place leaves out all that cannot be similar enough
        self.by_gram: dict[int, defaultdict[tuple[int, int], list[int]]] = {}
        self.marked = np.zeros(corpus.distinct, bool)

    def _prefix(self, text: int) -> Iterator[tuple[int, int]]:
        """The rarest n-grams that some other text has too, each with its place."""
        grams = self.corpus.grams_of(text)
        rarest = grams[: len(grams) - math.ceil(self.threshold * len(grams) - _SLACK) + 1]
        alone = int(np.searchsorted(rarest, self.corpus.shared))
        return enumerate(rarest[alone:].tolist(), start=alone)

    def add(self, text: int) -> None:
        self.by_key.setdefault(self.corpus.keys[text], text)
        size = int(self.sizes[text])
        for place, gram in self._prefix(text):
            self.by_gram.setdefault(gram, defaultdict(list))[size, place].append(text)

    def exact(self, text: int) -> tuple[int, float] | None:
        match = self.by_key.get(self.corpus.keys[text])
        return None if match is None else (match, 1.0)

    def similar(self, text: int) -> tuple[int, float] | None:
        """The first text added whose similarity reaches the threshold, and the similarity."""
        others = self._possible(text)
        if not len(others):
            return None
        sizes, grams = self.sizes[others], self.corpus.grams_of(text)
        self.marked[grams] = True
        theirs = np.concatenate([self.corpus.grams_of(other) for other in others])
        common = np.add.reduceat(self.marked[theirs], np.cumsum(sizes) - sizes, dtype=np.int64)
        self.marked[grams] = False
        similarity = common / (sizes + len(grams) - common)
        matches = np.flatnonzero(similarity >= self.threshold)
        return (int(others[matches[0]]), float(similarity[matches[0]])) if len(matches) else None

    def _possible(self, text: int) -> NDArray[np.int64]:
        """The texts that may be similar enough. Two that share their first n-gram at place i of m in one and j of n in
        the other share at most min(m − i, n − j) in all, and need t / (1 + t) · (m + n)."""
        size = int(self.sizes[text])
        share = self.threshold / (1 + self.threshold)
        found: set[int] = set()
        for place, gram in self._prefix(text):
            for (other_size, other_place), texts in self.by_gram.get(gram, {}).items():
                if min(size - place, other_size - other_place) >= share * (size + other_size) - _SLACK:
                    found.update(texts)
        return np.array(sorted(found), dtype=np.int64)


def removal_table(pools: Mapping[str, Screening[Any]]) -> TextTable:
    """Candidates, removals by rule and what is left, for each pool: the paper's decontamination table."""
    header = ("pool", "candidates", "within exact", "within n-gram", "cross exact", "cross n-gram", "kept")
    rows = [
        (name, *(f"{count:,}" for count in (screening.candidates, *screening.counts.values(), len(screening.kept))))
        for name, screening in pools.items()
    ]
    return text_table(header, rows)
