"""Leave the student's reasoning block out of the loss: for all policies alike, since they read the same response."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from trustmopd.evaluation.graders.reasoning import CLOSE, OPEN
from trustmopd.training.step.batch import Batch


def without_reasoning(batch: Batch, texts: Mapping[int, str]) -> Batch:
    """The tokens of the block do not count, as those of a tool do not. `texts` are those of tokens, by id."""
    mask = batch.mask.clone()
    for row, (prompt, response) in enumerate(zip(batch.prompt_ids.tolist(), batch.response_ids.tolist(), strict=True)):
        length = int((batch.attended[row] != 0).sum())
        before = "".join(texts[token] for token in prompt[-2 * len(OPEN) :])
        opened = before.rstrip().endswith(OPEN)
        mask[row, : reasoning_tokens([texts[token] for token in response[:length]], opened=opened)] = 0
    return replace(batch, mask=mask)


def reasoning_tokens(response: Sequence[str], *, opened: bool) -> int:
    """How many tokens, from the first on, are the block, as evaluation takes it. `opened`: the prompt has begun it."""
    text = "".join(response)
    if CLOSE in text:
        end = text.rindex(CLOSE) + len(CLOSE)
        return sum(start < end for start in accumulate(map(len, response[:-1]), initial=0))
    return len(response) if opened or text.lstrip().startswith(OPEN) else 0
