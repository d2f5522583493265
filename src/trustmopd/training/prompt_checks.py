"""Check prompt sets before anything is loaded, and warn of what is allowed but is often a mistake."""

import json
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from trustmopd.prompts.prompt_set import check_labels, check_prompts
from trustmopd.training.config import TrustMOPDConfig

#: Warn of more passes over the prompt set than this.
MANY_PASSES = 20


def check_prompt_sets(prompts: Any, evaluated: Any, teachers: Sequence[str], args: TrustMOPDConfig) -> None:
    """`evaluated` is the trainer's eval_dataset: a set, several by name, or None."""
    if not isinstance(prompts, Dataset):
        remedy = "Give one with a column 'prompt'; trustmopd.prompts.prompt_set.load_prompts reads files."
        if isinstance(prompts, IterableDataset):
            remedy = "Turn the stream into one with Dataset.from_list(list(stream.take(n)))."
        raise ValueError(
            f"train_dataset is {'missing' if prompts is None else f'a {type(prompts).__name__}'}: a datasets.Dataset "
            f"is needed, because prompts are checked before training. {remedy}"
        )
    others = evaluated.values() if isinstance(evaluated, Mapping) else [evaluated]
    for dataset in (prompts, *(other for other in others if isinstance(other, Dataset))):
        check_prompts(dataset)
        if args.rules.allocation.labelled:
            check_labels(dataset, args.domain_column, list(teachers))
    if len(prompts) < args.prompts_per_step:
        raise ValueError(
            f"the prompt set has {len(prompts)} prompts, fewer than the {args.prompts_per_step} of one batch of "
            f"global_batch_size = {args.global_batch_size}. Add prompts, or lower global_batch_size."
        )
    scores = {"eval_strategy": args.eval_strategy != "no", "save_strategy": args.save_strategy == "best"}
    for name, wanted in scores.items():
        if evaluated is None and wanted:
            raise ValueError(
                f"{name} = {getattr(args, name).value!r} needs an eval_dataset, and recipes have none. Leave it unset; "
                "`trustmopd evaluate` scores a finished run."
            )
    if args.domain_column not in (None, "domain", *prompts.column_names):
        raise ValueError(
            f"domain_column = {args.domain_column!r} is not a column of the prompt set, which has "
            f"{', '.join(prompts.column_names)}. Name one of them, or None if prompts have no labels."
        )


def warn_of_prompts(
    prompts: Dataset, tokenizer: PreTrainedTokenizerBase, teachers: Sequence[str], args: TrustMOPDConfig
) -> None:
    labels = prompts[args.domain_column] if args.domain_column in prompts.column_names else []
    if unknown := [label for label in labels if label is not None and label not in teachers]:
        warnings.warn(
            f"{len(unknown)} of {len(prompts)} prompts have a label in {args.domain_column!r} that names no teacher, "
            f"the first {unknown[0]!r}; the teachers are {', '.join(teachers)}. {args.rules.allocation.rule} only "
            "records labels; routed and `trustmopd diagnose` go by them.",
            stacklevel=4,
        )
    if "id" in prompts.column_names:
        pairs = {(str(id), json.dumps(prompt)) for id, prompt in zip(prompts["id"], prompts["prompt"], strict=True)}
        if repeated := sum(count > 1 for id, count in Counter(id for id, _ in pairs).items() if id != "None"):
            warnings.warn(
                f"{repeated} ids each stand for different prompts. Records and reports go by the row.", stacklevel=4
            )
    first = prompts[0]["prompt"]
    if isinstance(first, str) and tokenizer.chat_template:
        warnings.warn(
            "the prompts are plain text, so the student's chat template is not applied to them. If it is a chat model, "
            "give prompts as conversations: [{'role': 'user', 'content': '…'}].",
            stacklevel=4,
        )
    if not isinstance(first, str) and (answered := sum(p[-1]["role"] == "assistant" for p in prompts["prompt"])):
        warnings.warn(
            f"{answered} of {len(prompts)} prompts end with an assistant turn, so the student would reply to its own "
            "answer. Remove that turn if it is the solution.",
            stacklevel=4,
        )
    template = tokenizer.chat_template
    for name in args.chat_template_kwargs or {}:
        known = isinstance(template, dict) or name in signature(tokenizer.apply_chat_template).parameters
        if not known and not re.search(rf"\b{re.escape(name)}\b", template or ""):
            warnings.warn(
                f"chat_template_kwargs.{name} has no effect: the student's chat template does not use this name. "
                "Correct it, or remove it.",
                stacklevel=4,
            )
    passes = max(args.max_steps, 0) * args.prompts_per_step / len(prompts)
    if passes > MANY_PASSES:
        warnings.warn(
            f"max_steps = {args.max_steps} steps of {args.prompts_per_step} prompts use each of the {len(prompts)} "
            f"prompts {passes:.0f} times. Add prompts, or lower max_steps.",
            stacklevel=4,
        )
