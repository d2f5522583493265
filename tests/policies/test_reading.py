"""Which rows are read together, and in which layout."""

import pytest
import tiny
import torch

from trustmopd.policies.reading import Sequences, rows_under

pytestmark = pytest.mark.unit

LENGTHS = [5, 40, 7, 7, 12, 100, 1, 30, 12]


@pytest.mark.parametrize("max_tokens", [1, 12, 24, 60, 99, 100, 10_000])
def test_every_row_is_in_one_group_and_groups_keep_to_the_budget(max_tokens):
    groups = rows_under(max_tokens, LENGTHS)
    assert sorted(row for group in groups for row in group) == list(range(len(LENGTHS)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(LENGTHS[row] for row in group) <= max_tokens
    assert [LENGTHS[row] for group in groups for row in group] == sorted(LENGTHS, reverse=True)


def test_a_budget_for_all_is_one_group_and_a_longer_row_goes_alone():
    assert len(rows_under(100 * len(LENGTHS), LENGTHS)) == 1
    assert rows_under(50, LENGTHS)[0] == [LENGTHS.index(100)]


@pytest.mark.parametrize("num_groups", [1, 4, 6, 9, 20])
def test_groups_are_split_until_there_are_as_many_as_another_process_has(num_groups):
    fewest = len(rows_under(100, LENGTHS))
    groups = rows_under(100, LENGTHS, num_groups)
    assert len(groups) == max(fewest, min(num_groups, len(LENGTHS))) and all(groups)
    assert sorted(row for group in groups for row in group) == list(range(len(LENGTHS)))


@pytest.fixture
def padded():
    """Prompts of 3, 1 and 2 tokens, responses of 2, 4 and 0; what a tool wrote does not count."""
    ids = torch.tensor([[5, 6, 7, 8, 9, 0, 0], [0, 0, 5, 6, 7, 8, 9], [0, 7, 8, 0, 0, 0, 0]])
    response = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 1], [0, 0, 0, 0]])
    return Sequences.padded(ids, (ids != 0).long(), response)


def test_aligned_rows_start_in_the_first_column_and_need_no_mask(padded):
    aligned = padded.aligned()
    assert aligned.attention_mask is None
    assert aligned.input_ids.tolist() == [[5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [7, 8, 0, 0, 0]]
    assert aligned.predicts.nonzero().tolist() == [[0, 2], [0, 3], [1, 0], [1, 2], [1, 3]]


def test_all_layouts_give_the_same_states(padded):
    model = tiny.model().model
    with torch.no_grad():
        expected = padded.states(model)
        assert len(expected) == 5
        for layout in (padded.trimmed(model), padded.aligned()):
            torch.testing.assert_close(layout.states(model), expected, rtol=1e-5, atol=1e-5)
