"""Prepare prompts for rollouts: number them, cut or drop those that are too long."""

import logging
from collections.abc import Mapping

import numpy as np
from datasets import Dataset

from trustmopd.policies.graph import role_of
from trustmopd.training.config import TrustMOPDConfig

logger = logging.getLogger(__name__)

#: Column with a prompt's place in the set. TRL shuffles the rollouts; random weights and records use this number.
ROW = "trustmopd_row"
#: Names a prompt's random numbers, if they do not follow from seed, step and row.
DRAW = "trustmopd_draw"
#: Marks a prompt that only fills up a batch. Its response is masked.
SURPLUS = "trustmopd_surplus"


def with_rows(dataset: Dataset) -> Dataset:
    return dataset if ROW in dataset.column_names else dataset.add_column(ROW, np.arange(len(dataset)))


def fit_prompts(dataset: Dataset, lengths_of: Mapping[str, list[int]], args: TrustMOPDConfig) -> tuple[Dataset, int]:
    """The prompts to train on, and how many were over the limit. TRL itself has no limit. `lengths_of` has those of the
    student, whose name is empty, and of policies that read the prompts in another way."""
    limit, truncation = args.max_prompt_length, args.prompt_truncation
    if limit is None:
        return dataset, 0
    over_of = {
        name: [row for row, length in enumerate(lengths) if length > limit] for name, lengths in lengths_of.items()
    }
    over = sorted({row for rows in over_of.values() for row in rows})
    if not over:
        return dataset, 0
    found = "; ".join(_told(name, rows, lengths_of[name], limit) for name, rows in over_of.items() if rows)
    if truncation == "error":
        raise ValueError(f"{found}. Raise the limit, or choose prompt_truncation = left, right or drop.")
    if truncation == "drop":
        logger.warning("%s; they are dropped.", found)
        dropped = set(over)
        kept = dataset.select([row for row in range(len(dataset)) if row not in dropped])
        if len(kept) < args.prompts_per_step:
            raise ValueError(
                f"{found}, and only {len(kept)} would be left, fewer than the {args.prompts_per_step} of one batch of "
                f"global_batch_size = {args.global_batch_size}. Raise max_prompt_length, add prompts, or lower "
                "global_batch_size."
            )
        return kept, len(over)
    logger.warning("%s; they are cut on the %s.", found, truncation)
    return dataset, len(over)


def _told(name: str, over: list[int], lengths: list[int], limit: int) -> str:
    longest = max(over, key=lambda row: lengths[row])
    reader = f", as {role_of(name)} reads them," if name else ""
    return (
        f"{len(over)} of {len(lengths)} prompts{reader} are over max_prompt_length = {limit} tokens "
        f"(row {longest} has {lengths[longest]})"
    )
