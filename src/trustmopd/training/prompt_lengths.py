"""Prepare prompts for rollouts: number them, measure their length, cut or drop those that are too long."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

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


def prompt_lengths(dataset: Dataset, *rendering: Any, **options: Any) -> list[int]:
    """The length of every prompt in tokens. None may be empty; different ones that are rendered alike are told."""
    lengths: list[int] = []
    first: dict[int, tuple[int, Any]] = {}
    alike = []
    for row, (prompt, ids) in enumerate(_rendered(dataset, *rendering, **options)):
        if not ids:
            raise ValueError(f"row {row} of the prompt set, {str(prompt)[:80]!r}, is rendered as nothing. Drop it.")
        lengths.append(len(ids))
        before, same = first.setdefault(hash(tuple(ids)), (row, prompt))
        if same != prompt:
            alike.append((before, row))
    if alike:
        warnings.warn(
            f"{len(alike)} of {len(lengths)} prompts are rendered as a different one is: rows {alike[0][0]} and "
            f"{alike[0][1]}, for example. Does the chat template, or the tokenizer, leave something out?",
            stacklevel=3,
        )
    return lengths


def _rendered(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, tools: Sequence | None = None, **options: Any
) -> Iterator[tuple[Any, list[int]]]:
    """Prompts and their tokens, as TRL renders them; `options` go to the chat template."""

    def as_text(row: int, prompt: Any) -> str:
        given = {"tools": tools or None, "add_generation_prompt": True, **options}
        try:
            return prompt if isinstance(prompt, str) else tokenizer.apply_chat_template(prompt, tokenize=False, **given)
        except TemplateError as error:
            raise ValueError(
                f"row {row} of the prompt set cannot be rendered with the student's chat template: {error}. The prompt "
                f"is {str(prompt)[:120]!r}. Change its roles, or drop it."
            ) from error

    for start in range(0, len(dataset), 512):
        prompts = dataset[start : start + 512]["prompt"]
        texts = [as_text(row, prompt) for row, prompt in enumerate(prompts, start)]
        ids = tokenizer(text=texts, add_special_tokens=isinstance(prompts[0], str))["input_ids"]
        yield from zip(prompts, ids, strict=True)


def fit_prompts(dataset: Dataset, lengths: list[int], args: TrustMOPDConfig) -> tuple[Dataset, int]:
    """The prompts to train on, and how many were over the limit. TRL itself has no limit."""
    limit, truncation = args.max_prompt_length, args.prompt_truncation
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
        kept = dataset.select([row for row in range(len(dataset)) if row not in dropped])
        if len(kept) < args.global_batch_size:
            raise ValueError(
                f"{found}, and only {len(kept)} would be left, fewer than one batch of global_batch_size = "
                f"{args.global_batch_size}. Raise max_prompt_length, add prompts, or lower global_batch_size."
            )
        return kept, len(over)
    logger.warning("%s; they are cut on the %s.", found, truncation)
    return dataset, len(over)


def truncate(prompt_ids: list[int], limit: int | None, truncation: str) -> list[int]:
    if limit is None or len(prompt_ids) <= limit:
        return prompt_ids
    return prompt_ids[:limit] if truncation == "right" else prompt_ids[-limit:]
