"""Decontamination as its definition reads: every pair, character by character and set by set. Shares no code."""

import re
import unicodedata


def letters_and_digits(text):
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def ngrams(text, n):
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def jaccard(first, second):
    return len(first & second) / len(first | second) if first and second else 0.0


class Text:
    def __init__(self, text, n, place):
        self.text, self.key, self.grams, self.place = text, letters_and_digits(text), ngrams(text, n), place


def brute_force(candidates, comparison, *, parents=None, n=5, threshold=0.8):
    """(kept, [(index, rule, matched text, similarity, place of the matched text)])"""
    comparison = [Text(text, n, place) for place, text in enumerate(comparison)]
    accepted, accepted_parents = [], []
    kept, removed = [], []
    for index, candidate in enumerate(candidates):
        text = Text(candidate, n, index)
        looks = [(text, comparison, accepted)]
        parent = Text(parents[index], n, index) if parents and parents[index] else None
        if parent and parent.key:
            looks.append((parent, comparison, accepted_parents))
        found = None
        for kind in ("exact", "ngram"):
            for side in ("cross", "within"):
                for mine, there, before in looks:
                    for other in there if side == "cross" else before:
                        if kind == "exact":
                            similarity = 1.0 if mine.key == other.key else 0.0
                        else:
                            similarity = jaccard(mine.grams, other.grams)
                            similarity = similarity if similarity >= threshold else 0.0
                        if similarity and not found:
                            found = (index, f"{side}_{kind}", other.text, similarity, other.place)
        if found:
            removed.append(found)
            continue
        kept.append(index)
        accepted.append(text)
        if parent and parent.key:
            accepted_parents.append(parent)
    return kept, removed
