"""Which tokens of a response are its reasoning block."""

import pytest
import torch

from trustmopd.evaluation.graders.reasoning import strip_reasoning
from trustmopd.training.step import Batch
from trustmopd.training.step.reasoning import reasoning_tokens, without_reasoning

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("response", "opened", "block"),
    [
        (["<think>", "a", "</think>", "b"], False, 3),
        (["<th", "ink>a", "</thi", "nk>b", "c"], False, 4),  # a token that ends the block belongs to it
        (["a", "</think>", "b"], True, 2),
        (["<think>", "a"], False, 2),
        (["a", "b"], True, 2),
        (["a", "b"], False, 0),
        ([" ", "<think>", "</think>", "x", "</think>", "b"], False, 5),
        ([], False, 0),
    ],
)
def test_the_block_is_what_evaluation_does_not_grade(response: list[str], opened: bool, block: int) -> None:
    assert reasoning_tokens(response, opened=opened) == block
    if not opened:
        rest = "".join(response[block:])
        assert strip_reasoning("".join(response)).endswith(rest)


def test_the_blocks_tokens_do_not_count_and_are_still_read() -> None:
    texts = dict(enumerate(["<pad>", "<think>", "</think>", "x", "y"]))
    generated = {
        "prompt_ids": torch.tensor([[0, 3], [3, 1]]),
        "prompt_mask": torch.tensor([[0, 1], [1, 1]]),
        "completion_ids": torch.tensor([[1, 3, 2, 4], [3, 2, 4, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
    }
    batch = without_reasoning(Batch.of(generated), texts)
    assert batch.mask.tolist() == [[0, 0, 0, 1], [0, 0, 1, 0]]
    assert batch.attended.tolist() == generated["completion_mask"].tolist()
