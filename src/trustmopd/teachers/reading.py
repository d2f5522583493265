"""How rollouts are read, by the student and by the frozen policies: which rows together, and in which layout.

Without a token budget a micro-batch is some rows as TRL padded them. With one, rows of like length are read together
and start in the first column: `rows × longest row` is at most the budget, and no attention mask is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from trustmopd.teachers.backbone import last_hidden_states, takes_positions


def rows_under(max_tokens: int, lengths: Sequence[int], num_groups: int = 1) -> list[list[int]]:
    """Rows by length, the longest first, in groups of at most `max_tokens` tokens with their padding; a longer row goes
    alone. At least `num_groups` groups, if there are so many rows: processes must agree on a number."""
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if not groups or (len(groups[-1]) + 1) * lengths[groups[-1][0]] > max_tokens:
            groups.append([])
        groups[-1].append(row)
    while len(groups) < min(num_groups, len(lengths)):
        largest = max(range(len(groups)), key=lambda group: len(groups[group]))
        rows = groups[largest]
        groups[largest : largest + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return groups


@dataclass(frozen=True)
class Sequences:
    """Prompts with their responses, as a backbone reads them. `predicts` marks the state before each response token:
    the one that predicts it."""

    input_ids: Int[Tensor, "B L"]
    attention_mask: Shaped[Tensor, "B L"] | None
    predicts: Bool[Tensor, "B L"]

    @classmethod
    def padded(
        cls,
        input_ids: Int[Tensor, "B L"],
        attention_mask: Shaped[Tensor, "B L"],
        response_mask: Shaped[Tensor, "B T"],
    ) -> "Sequences":
        """As TRL makes them: prompts padded on the left, responses on the right."""
        predicts = torch.zeros_like(attention_mask, dtype=torch.bool)
        predicts[:, -response_mask.shape[1] - 1 : -1] = response_mask != 0
        return cls(input_ids, attention_mask, predicts)

    def trimmed(self, backbone: nn.Module) -> "Sequences":
        """Without the columns in which none of them has a token."""
        assert self.attention_mask is not None
        used = self.attention_mask.bool().any(dim=0).nonzero()
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, self.input_ids.shape[1])
        first = first if takes_positions(backbone) else 0  # others count from the first column, as the student does
        return Sequences(self.input_ids[:, first:end], self.attention_mask[:, first:end], self.predicts[:, first:end])

    def aligned(self) -> "Sequences":
        """Each from the first column on, with the padding behind it. Attention is causal, so no token sees the padding,
        and there is no mask: SDPA can use its flash kernel."""
        assert self.attention_mask is not None
        attended = self.attention_mask != 0
        width = max(1, int(attended.sum(dim=1).max()))
        order = (~attended).int().argsort(dim=1, stable=True)[:, :width]
        return Sequences(self.input_ids.gather(1, order), None, self.predicts.gather(1, order))

    def states(self, backbone: nn.Module) -> Float[Tensor, "N H"]:
        """The state that predicts each response token, one row's after another's."""
        return last_hidden_states(backbone, self.input_ids, self.attention_mask)[self.predicts]
