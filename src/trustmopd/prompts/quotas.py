"""Quotas: which rows fill which places of a prompt set, with as few left empty as possible, from a seed."""

import hashlib
import sys
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Key = TypeVar("Key", bound=Hashable)
Named = TypeVar("Named")


@dataclass(frozen=True)
class Bucket:
    """Prompts of `low` words or more and fewer than `high`."""

    low: int = 0
    high: int = sys.maxsize

    def __str__(self) -> str:
        if self == Bucket():
            return "any length"
        return f"{self.low} words or more" if self.high == sys.maxsize else f"{self.low} to {self.high - 1} words"

    def without(self, words: int) -> "Bucket":
        """What is left for a problem when a block takes `words`."""
        return Bucket(max(0, self.low - words), self.high if self.high == sys.maxsize else max(0, self.high - words))


def bucket_of(words: int, edges: Sequence[int]) -> Bucket:
    place = bisect_right(edges, words)
    bounds = (0, *edges, sys.maxsize)
    return Bucket(bounds[place], bounds[place + 1])


@dataclass(frozen=True)
class Need:
    """What one place asks of a row: how many constraints (None: any), and how long."""

    constraints: int | None = None
    length: Bucket = Bucket()

    def __str__(self) -> str:
        number = "" if self.constraints is None else f"{self.constraints} constraint{'s' * (self.constraints != 1)}, "
        return f"{number}{self.length}"

    def fits(self, words: NDArray[np.int64], constraints: NDArray[np.int64]) -> NDArray[np.bool_]:
        long_enough = (words >= self.length.low) & (words < self.length.high)
        return long_enough if self.constraints is None else long_enough & (constraints == self.constraints)


def shuffled(items: Iterable[Named], seed: int, purpose: str, names: Iterable[str]) -> list[Named]:
    """By a hash of seed, purpose and each item's name. The order does not depend on the random generator's version or
    on other items."""
    keys = (hashlib.blake2b(f"{seed}/{purpose}/{name}".encode(), digest_size=16).digest() for name in names)
    return [item for _, item in sorted(zip(keys, items, strict=True), key=lambda pair: pair[0])]


def apportion(total: int, weights: Mapping[Key, int]) -> dict[Key, int]:
    """`total` in proportion to the weights, rounded so that it adds up: largest remainders first, then first named."""
    whole = sum(weights.values())
    shares = {key: divmod(total * weight, whole) for key, weight in weights.items()}
    left = total - sum(share for share, _ in shares.values())
    favoured = set(sorted(shares, key=lambda key: -shares[key][1])[:left])
    return {key: share + (key in favoured) for key, (share, _) in shares.items()}


def fill(needs: Sequence[Need], rows: Sequence[tuple[int, int]]) -> list[int | None]:
    """A row, (words, constraints), for each need, no row twice; None only where no choice could fill more.

    The most demanding needs choose first, each the first row that fits. Where none is left, rows change hands along an
    augmenting path: this is maximum bipartite matching, so a shortage is the pool's and not the order's.
    """
    kinds = {row: kind for kind, row in enumerate(dict.fromkeys(rows))}  # equal rows fit the same needs
    kind_of = [kinds[row] for row in rows]
    words, constraints = np.array(list(kinds), dtype=np.int64).reshape(-1, 2).T
    right = {need: need.fits(words, constraints) for need in set(needs)}
    fitting = {need: np.flatnonzero(fits[kind_of]).tolist() for need, fits in right.items()}
    chosen: list[int | None] = [None] * len(needs)
    holder: dict[int, int] = {}  # row → place that has it; a row once held stays held
    held: list[dict[Need, dict[int, None]]] = [{} for _ in kinds]  # of each kind: by whom, and which rows
    passed: Counter[Need] = Counter()  # rows at the head of `fitting` known to be held

    def free_row(need: Need) -> int | None:
        there = fitting[need]
        while passed[need] < len(there) and there[passed[need]] in holder:
            passed[need] += 1
        return there[passed[need]] if passed[need] < len(there) else None

    def give(row: int, place: int) -> None:
        if row in holder:
            before = held[kind_of[row]][needs[holder[row]]]
            del before[row]
            if not before:
                del held[kind_of[row]][needs[holder[row]]]
        chosen[place], holder[row] = row, place
        held[kind_of[row]].setdefault(needs[place], {})[row] = None

    hopeless: set[Need] = set()  # no path leads from them to a free row, and none ever will
    for first in sorted(range(len(needs)), key=lambda place: len(fitting[needs[place]])):
        reached: dict[Need, tuple[Need, int] | None] = {needs[first]: None}  # (who asks, the row that is given up)
        queue = deque(need for need in reached if need not in hopeless)
        unseen = np.ones(len(kinds), bool)
        while queue:
            need = queue.popleft()
            row = free_row(need)
            if row is not None:
                while (step := reached[need]) is not None:  # each on the path takes a row and hands on its own
                    need, given_up = step
                    give(row, holder[given_up])
                    row = given_up
                give(row, first)
                break
            for kind in np.flatnonzero(right[need] & unseen).tolist():
                for other, theirs in held[kind].items():
                    if other not in reached:
                        reached[other] = (need, next(iter(theirs)))
                        queue.append(other)
            unseen &= ~right[need]
        else:
            hopeless |= reached.keys()
    return chosen
