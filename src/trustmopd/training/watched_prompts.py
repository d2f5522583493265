"""The held-out prompts that are watched: some of each benchmark, always the same ones, as the student is asked them."""

import random
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from trustmopd.evaluation.benchmarks import load_benchmarks
from trustmopd.evaluation.grading import grade_row
from trustmopd.evaluation.sampling import Sampling, put, render
from trustmopd.evaluation.user_sets import is_graded
from trustmopd.prompts.reading.messages import common_system
from trustmopd.training.config import TrustMOPDConfig


class HeldOut(NamedTuple):
    """One prompt. `opened` is what the chat template has already written of the response."""

    benchmark: str
    domain: str
    id: str
    ids: list[int]
    opened: str
    grader: Callable[[str], Any]


def held_out(
    args: TrustMOPDConfig, tokenizer: PreTrainedTokenizerBase, prompts: Dataset, longest: int
) -> list[HeldOut]:
    """`longest` is the most tokens that the engine takes, with the response."""
    assert args.watching is not None and args.max_completion_length is not None
    if not args.watching.benchmarks and not any(map(is_graded, prompts)):
        raise ValueError(
            "watch would grade nothing: it names no benchmarks, and no prompt carries `answer` or another grader's "
            "fields. Name benchmarks, or leave watch out."
        )
    room, conversations = longest - args.max_completion_length, list(prompts["prompt"])
    sampling = Sampling(system=common_system(conversations), chat_template_kwargs=args.chat_template_kwargs)
    trained_on, found = {*map(_question, conversations)}, []
    for source, loaded in zip(args.watching.benchmarks, load_benchmarks(args.watching.benchmarks, {}), strict=True):
        benchmark, rows = loaded.benchmark, loaded.rows
        known, own = 0, []
        for row in random.Random(0).sample(rows, min(args.watching.prompts, len(rows))):
            messages, options = put(benchmark, row, sampling)
            known += _question(messages) in trained_on
            asked = render(tokenizer, messages, **options)
            domain = str(row.get("domain") or benchmark.domain)
            own.append(HeldOut(benchmark.name, domain, str(row["id"]), *asked, partial(grade_row, source, row)))
        short = [each for each in own if len(each.ids) <= room]
        if not short:
            raise ValueError(
                f"watch: all prompts of {benchmark.name} are longer than the longest of training, {room} tokens. Watch "
                "another benchmark."
            )
        if longer := len(own) - len(short):
            _warn(f"{longer} of {len(own)} prompts of {benchmark.name} are longer than {room} tokens, and left out.")
        if known:
            _warn(
                f"{known} of {len(own)} prompts of {benchmark.name} are trained on, so their score says less about "
                "others. Hold them out of the prompt set, or watch another benchmark."
            )
        found += short
    return found


def _question(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def _warn(problem: str) -> None:
    warnings.warn(f"watch: {problem}", stacklevel=4)
