"""Prompts on their way into a rollout: numbered, measured against the limit, cut or dropped."""

import logging
from collections.abc import Callable

import numpy as np
from datasets import Dataset

logger = logging.getLogger(__name__)

#: Column with a prompt's place in the set: TRL shuffles the rollouts, and random weights and records must not notice.
ROW = "trustmopd_row"


def with_rows(dataset: Dataset) -> Dataset:
    return dataset if ROW in dataset.column_names else dataset.add_column(ROW, np.arange(len(dataset)))


def prompt_lengths(dataset: Dataset, lengths_of: Callable[[list], list[int]]) -> list[int]:
    lengths: list[int] = []
    for start in range(0, len(dataset), 512):
        lengths += lengths_of(dataset[start : start + 512]["prompt"])
    return lengths


def fit_prompts(dataset: Dataset, lengths: list[int], limit: int | None, truncation: str) -> tuple[Dataset, int]:
    """The prompts to train on and how many were over `limit` tokens; TRL itself would pass them on at any length."""
    if limit is None:
        return dataset, 0
    over = [row for row, length in enumerate(lengths) if length > limit]
    if not over:
        return dataset, 0
    longest = max(over, key=lambda row: lengths[row])
    found = (
        f"{len(over)} of {len(dataset)} prompts are over max_prompt_length = {limit} tokens "
        f"(row {longest} has {lengths[longest]})"
    )
    if truncation == "error":
        raise ValueError(f"{found}. Raise the limit, or choose prompt_truncation = left, right or drop.")
    if truncation == "drop":
        logger.warning("%s; they are dropped.", found)
        dropped = set(over)
        return dataset.select([row for row in range(len(dataset)) if row not in dropped]), len(over)
    logger.warning("%s; they are cut on the %s.", found, truncation)
    return dataset, len(over)


def truncate(prompt_ids: list[int], limit: int | None, truncation: str) -> list[int]:
    if limit is None or len(prompt_ids) <= limit:
        return prompt_ids
    return prompt_ids[:limit] if truncation == "right" else prompt_ids[-limit:]
