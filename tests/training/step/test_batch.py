"""A batch carries all that belongs to it, whatever rows of it are taken."""

from dataclasses import FrozenInstanceError

import pytest
import torch
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

from trustmopd.training.step import ENTRIES, Batch, ask, batch_of
from trustmopd.training.step.batch import RolloutId

pytestmark = pytest.mark.unit


def test_a_batch_is_frozen(batch_of_lengths):
    with pytest.raises(FrozenInstanceError):
        batch_of_lengths().answers = None


def test_a_part_of_a_part_has_its_own_rows_of_everything(batch_of_lengths, context_of):
    batch = ask(context_of(), batch_of_lengths(engine_logp=torch.arange(35.0).view(5, 7)))
    part = batch.part([4, 2, 0]).part([2, 1])
    for name in ("prompt_ids", "prompt_mask", "response_ids", "attended", "mask", "engine_logp"):
        assert torch.equal(getattr(part, name), getattr(batch, name)[[0, 2]]), name
    assert [rollout.prompt_id for rollout in part.rollouts] == ["p0", "p2"]
    assert part.asked == (0, 2) and part.answers is batch.answers


def test_all_rows_in_order_are_the_batch_itself(batch_of_lengths):
    batch = batch_of_lengths()
    assert batch.part(range(len(batch))) is batch
    assert batch.part([1, 0, 2, 3, 4]) is not batch


def test_trimming_leaves_every_token_and_no_column_of_padding(batch_of_lengths):
    part = batch_of_lengths(engine_logp=torch.arange(35.0).view(5, 7)).part([0, 4])
    trimmed = part.trimmed()
    assert trimmed.prompt_ids.shape == (2, 4) and trimmed.response_ids.shape == (2, 5)
    for whole, narrow in ((part.sequences, trimmed.sequences), ((part.engine_logp, part.mask),) * 2):
        for row in range(2):
            assert torch.equal(narrow[0][row][narrow[1][row] != 0], whole[0][row][whole[1][row] != 0])
    assert trimmed.engine_logp.shape == trimmed.mask.shape == (2, 5)
    empty = batch_of_lengths().part([3]).trimmed()
    assert empty.response_ids.shape == (1, 1) and empty.num_responses == 0


def test_a_tools_output_is_read_and_does_not_count():
    ids = torch.arange(8).view(2, 4)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    tensors = {"prompt_ids": ids, "prompt_mask": mask.flip(1), "completion_ids": ids, "completion_mask": mask}
    batch = Batch.of({**tensors, "tool_mask": torch.tensor([[1, 0, 0, 1], [0, 0, 1, 1]])})
    assert batch.mask.tolist() == [[1, 0, 0, 1], [0, 0, 0, 0]]
    assert batch.sequences[1][:, 4:].tolist() == mask.tolist()
    assert batch.num_responses == 1


def test_the_one_key_goes_through_trls_shuffle_and_split(batch_of_lengths):
    batch = batch_of_lengths(((3, 5), (9, 1), (1, 7), (6, 2)))
    trls = {"prompt_ids": batch.prompt_ids, "completion_ids": batch.response_ids}
    shuffled = shuffle_sequence_dict({**trls, "num_items_in_batch": torch.tensor(4), ENTRIES: batch.entries()})
    found = []
    for inputs in split_tensor_dict(shuffled, 2):
        part = batch_of(inputs)
        assert torch.equal(part.prompt_ids, inputs["prompt_ids"])
        assert torch.equal(part.response_ids, inputs["completion_ids"])
        found += [rollout.id.row for rollout in part.rollouts]
    assert sorted(found) == [0, 1, 2, 3]


def test_trls_tensors_alone_are_a_batch_that_is_not_asked_yet(batch_of_lengths):
    whole = batch_of_lengths()
    names = {"prompt_ids": whole.prompt_ids, "prompt_mask": whole.prompt_mask}
    batch = batch_of({**names, "completion_ids": whole.response_ids, "completion_mask": whole.attended})
    assert torch.equal(batch.mask, whole.mask)
    assert [rollout.id for rollout in batch.rollouts] == [RolloutId(row) for row in range(5)]
    assert not batch.answers
