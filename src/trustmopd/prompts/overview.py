"""What is in a prompt set: counts, lengths and examples by category."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from datasets import Dataset

from trustmopd.prompts.build_config import LENGTH_EDGES
from trustmopd.prompts.ngrams import words_of
from trustmopd.prompts.prompt_set import check_prompts, load_prompts
from trustmopd.prompts.quotas import bucket_of
from trustmopd.prompts.reading.formats import no_column
from trustmopd.prompts.reading.messages import user_text
from trustmopd.util.text_tables import TextTable, text_table

_BAR = 30  # characters of the longest bar


@dataclass(frozen=True)
class Overview:
    prompts: int
    counts: TextTable
    lengths: TextTable
    examples: dict[str, list[str]]


def overview(path: str, *, column: str = "prompt", split: str = "train", examples: int = 1) -> Overview:
    """Categories are capabilities where the set has them, else domains."""
    dataset = _with_prompts(load_prompts(path, split), column, path)
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
        left=("constraints: prompts",),
    )
    histogram = _histogram([each for there in words.values() for each in there])
    return Overview(len(dataset), counts, histogram, shown)


def _with_prompts(dataset: Dataset, column: str, path: str) -> Dataset:
    """The set with its prompts in the column `prompt`."""
    if column not in dataset.column_names and column.split(".")[0] in dataset.column_names:
        dataset = dataset.flatten()  # a field of a struct becomes a column of its dotted name
    if column not in dataset.column_names:
        raise ValueError(f"{no_column(path, column, dataset.column_names)} Name the right one: --column.")
    if column == "prompt":
        return dataset
    others = [name for name in dataset.column_names if name != "prompt"]
    return dataset.select_columns(others).rename_column(column, "prompt")


def _category(row: dict[str, Any]) -> str:
    capabilities, domain = row.get("capabilities"), row.get("domain")
    if capabilities:
        return "-".join(map(str, capabilities)) if isinstance(capabilities, list) else str(capabilities)
    return "unlabelled" if domain is None or domain == "" else str(domain)


def _histogram(lengths: list[int]) -> TextTable:
    found = Counter(bucket_of(length, LENGTH_EDGES) for length in lengths)
    most = max(found.values())
    rows = [
        (bucket, f"{found[bucket]:,}", "█" * max(1, round(_BAR * found[bucket] / most)))
        for bucket in sorted(found, key=lambda bucket: bucket.low)
    ]
    return text_table(("length", "prompts", ""), rows, left=("",))
