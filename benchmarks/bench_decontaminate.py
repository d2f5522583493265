"""Time, memory and exactness of decontamination as the corpora grow.

    python benchmarks/bench_decontaminate.py                          # up to 100,000 against 110,000 texts
    python benchmarks/bench_decontaminate.py --sizes 10000 --rivals 10000

Texts of 20 to 200 words with the word frequencies of prose (Zipf), a quarter of them with a boilerplate sentence that
hundreds share, and planted copies with 0 to 6 words changed, on both sides of 0.8. `brute force` compares sets of
n-grams pair by pair for a sample of candidates, which checks the exact result, and is extrapolated to all pairs.
`MinHash LSH` is datasketch (pip install datasketch) with 128 permutations; what it misses and what it takes too much is
counted against the exact result. Each case runs in a process of its own.
"""

import multiprocessing
import platform
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from record import append
from rich.console import Console
from rich.progress import track
from rich.table import Table

from trustmopd.prompts.decontaminate import decontaminate
from trustmopd.prompts.ngrams import words_of

RESULTS = Path(__file__).parent / "results" / "decontaminate.csv"
VOCABULARY, BOILERPLATE, PLANTED = 50_000, 200, 0.1
NGRAM, THRESHOLD = 5, 0.8


def corpora(size: int) -> tuple[list[str], list[str]]:
    """Candidates, and a tenth more comparison texts."""
    rng = np.random.default_rng(size)
    frequency = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    names = np.array([f"w{i}" for i in range(VOCABULARY)])

    def draw(count: int) -> list[str]:
        return names[np.searchsorted(frequency, rng.random(count) * frequency[-1])].tolist()

    sentences = [draw(int(rng.integers(8, 16))) for _ in range(BOILERPLATE)]

    def text() -> list[str]:
        lead = sentences[rng.integers(BOILERPLATE)] if rng.random() < 0.25 else []
        return lead + draw(int(rng.integers(20, 201)) - len(lead))

    def copy(words: list[str]) -> list[str]:
        places = rng.choice(len(words), size=int(rng.integers(0, 7)), replace=False)
        copied = list(words)
        for place, word in zip(places, draw(len(places)), strict=True):
            copied[place] = word
        return copied

    comparison = [text() for _ in range(size + size // 10)]
    candidates: list[list[str]] = []
    for _ in range(size):
        kind = rng.random()
        if kind < PLANTED / 2:
            candidates.append(copy(comparison[rng.integers(len(comparison))]))
        elif kind < PLANTED and candidates:
            candidates.append(copy(candidates[rng.integers(len(candidates))]))
        else:
            candidates.append(text())
    return [" ".join(words) for words in candidates], [" ".join(words) for words in comparison]


def ngrams(text: str) -> set[tuple[str, ...]]:
    words = words_of(text)
    return {tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)}


class Clock:
    """Seconds by the clock, and of this process's CPU time, which other work on the machine does not lengthen."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {"seconds": time.perf_counter() - self.wall, "cpu_seconds": time.process_time() - self.cpu}


def exact(size: int, within: bool = True) -> dict[str, object]:
    candidates, comparison = corpora(size)
    clock = Clock()
    found = decontaminate(candidates, comparison, ngram=NGRAM, threshold=THRESHOLD, within=within)
    taken = clock.read()
    rules = " ".join(f"{rule}={count}" for rule, count in found.counts.items())
    return {**taken, "removed": len(found.removed), "notes": rules}


def brute_force(size: int, sample: int = 40) -> dict[str, object]:
    """Some candidates that have a match and some that have none, by the exact result, against every comparison text.
    Only the comparisons are timed; a disagreement ends the benchmark."""
    candidates, comparison = corpora(size)
    removed = [each.index for each in decontaminate(candidates, comparison, within=False).removed]
    flagged = set(removed)
    clean = [index for index in range(size) if index not in flagged]
    chosen = {index: ngrams(candidates[index]) for index in removed[:sample] + clean[:sample]}
    matched, taken = set(), dict.fromkeys(("seconds", "cpu_seconds"), 0.0)
    for place in range(0, len(comparison), 1000):  # the sets of all would not fit
        others = [ngrams(text) for text in comparison[place : place + 1000]]
        clock = Clock()
        for second in others:
            for index, first in chosen.items():
                common = len(first & second)
                if common >= THRESHOLD * (len(first) + len(second) - common):
                    matched.add(index)
        taken = {name: taken[name] + value for name, value in clock.read().items()}
    if matched != flagged & chosen.keys():
        raise SystemExit(f"brute force and the exact result disagree on candidates {matched ^ flagged & chosen.keys()}")
    pairs, compared = size * (size + size // 10) + size * (size - 1) // 2, len(chosen) * len(comparison)
    notes = f"extrapolated from {compared} of {pairs} pairs; agrees on {len(chosen)} candidates"
    return {**{name: value / compared * pairs for name, value in taken.items()}, "notes": notes}


def minhash(size: int) -> dict[str, object]:
    """Candidates against comparison texts alone: an index of MinHash bands."""
    from datasketch import MinHash, MinHashLSH

    candidates, comparison = corpora(size)
    clock = Clock()

    def signatures(texts: list[str]) -> list[MinHash]:
        return MinHash.bulk([[" ".join(gram).encode() for gram in ngrams(text)] for text in texts], num_perm=128)

    index = MinHashLSH(threshold=THRESHOLD, num_perm=128)
    for key, signature in enumerate(signatures(comparison)):
        index.insert(key, signature)
    flagged = {key for key, signature in enumerate(signatures(candidates)) if index.query(signature)}
    taken = clock.read()
    truth = {each.index for each in decontaminate(candidates, comparison, within=False).removed}
    missed, extra = len(truth - flagged), len(flagged - truth)
    notes = f"of {len(truth)} candidates with a match it misses {missed}, and flags {extra} others"
    return {**taken, "removed": len(flagged), "missed": missed, "extra": extra, "notes": notes}


def exact_cross(size: int) -> dict[str, object]:
    """The exact side of the comparison with MinHash: the same question."""
    return {**exact(size, within=False), "missed": 0, "extra": 0}


def in_own_process(case: Callable[[int], dict[str, object]], size: int) -> dict[str, object]:
    """With the peak memory of that process, its texts included."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        row = pool.submit(case, size).result()
        row["peak_gib"] = pool.submit(_peak_gib).result()
    return row


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux


@cache
def versions() -> str:
    try:
        rival = f" datasketch {version('datasketch')}"
    except PackageNotFoundError:
        rival = ""
    return f"python {platform.python_version()} numpy {np.__version__}{rival}"


def main(
    sizes: Annotated[str, typer.Option(help="Candidates, one case for each.")] = "12500,25000,50000,100000",
    rivals: Annotated[int, typer.Option(help="Candidates in the comparison with MinHash LSH; 0: none.")] = 20_000,
    output: Annotated[
        Path, typer.Option(help="CSV file to append to.", show_default="results/decontaminate.csv")
    ] = RESULTS,
) -> None:
    """Exact decontamination against brute force and MinHash LSH."""
    counts = [int(size) for size in sizes.split(",")]
    cases: list[tuple[str, Callable[[int], dict[str, object]], int]] = [("exact", exact, size) for size in counts]
    cases.append(("brute force", brute_force, counts[-1]))
    if rivals:
        cases += [("exact, cross only", exact_cross, rivals), ("MinHash LSH, cross only", minhash, rivals)]
    columns = ("seconds", "cpu_seconds", "peak_gib", "removed", "missed", "extra", "notes")
    table = Table("implementation", "candidates", "comparison", *columns[:-1])
    rows = []
    for name, case, size in track(cases, description="cases", console=Console(stderr=True)):
        found = in_own_process(case, size)
        measured = {column: found.get(column, "") for column in columns}
        measured |= {column: f"{measured[column]:.2f}" for column in ("seconds", "cpu_seconds", "peak_gib")}
        texts = {"implementation": name, "candidates": size, "comparison": size + size // 10}
        table.add_row(*map(str, [*texts.values(), *measured.values()][:-1]))
        rows.append(texts | measured | {"versions": versions(), "date": date.today().isoformat()})
    append(rows, output)
    Console().print(table)
    for row in rows:
        print(f"{row['implementation']}, {row['candidates']}: {row['notes']}")
    print(f"{len(rows)} rows appended to {output}")


if __name__ == "__main__":
    typer.run(main)
