"""What is in a prompt set: counts, lengths and examples by category."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from trustmopd.data.card import user_text
from trustmopd.data.ngrams import words_of
from trustmopd.data.prompts import check_prompts, load_prompts
from trustmopd.data.quotas import bucket_of
from trustmopd.tables import TextTable, text_table

_EDGES = (16, 32, 64, 128, 256, 512, 1024)
_BAR = 30  # characters of the longest bar


@dataclass(frozen=True)
class Overview:
    prompts: int
    counts: TextTable
    lengths: TextTable
    examples: dict[str, list[str]]


def overview(path: str, *, split: str = "train", examples: int = 1) -> Overview:
    """Categories are capabilities where the set has them, else domains."""
    dataset = load_prompts(path, split)
    check_prompts(dataset)
    words: dict[str, list[int]] = defaultdict(list)
    constraints: dict[str, Counter[int]] = defaultdict(Counter)
    shown: dict[str, list[str]] = defaultdict(list)
    for row in dataset:
        category, text = _category(row), user_text(row["prompt"])
        words[category].append(len(words_of(text)))
        given = row.get("constraints")
        constraints[category][len(given) if isinstance(given, list) else 0] += 1  # another's file, another's meaning
        if len(shown[category]) < examples:
            shown[category].append(text)
    counts = text_table(
        ("category", "prompts", "share", "words, median", "longest", "constraints: prompts"),
        [
            (
                category,
                f"{len(lengths):,}",
                f"{len(lengths) / len(dataset):.1%}",
                sorted(lengths)[len(lengths) // 2],
                max(lengths),
                ", ".join(f"{number}: {count:,}" for number, count in sorted(constraints[category].items())),
            )
            for category, lengths in words.items()
        ],
    )
    return Overview(len(dataset), counts, _histogram([each for lengths in words.values() for each in lengths]), shown)


def _category(row: dict[str, Any]) -> str:
    capabilities, domain = row.get("capabilities"), row.get("domain")
    if capabilities:
        return " + ".join(map(str, capabilities)) if isinstance(capabilities, list) else str(capabilities)
    return "unlabelled" if domain is None or domain == "" else str(domain)


def _histogram(lengths: list[int]) -> TextTable:
    found = Counter(bucket_of(length, _EDGES) for length in lengths)
    most = max(found.values())
    rows = [
        (bucket, f"{found[bucket]:,}", "█" * max(1, round(_BAR * found[bucket] / most)))
        for bucket in sorted(found, key=lambda bucket: bucket.low)
    ]
    return text_table(("words", "prompts", ""), rows)
