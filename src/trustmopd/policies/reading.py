"""How the student and the frozen policies read rollouts: which rows together, and in which layout.

Without a token budget, a micro-batch has some rows as TRL padded them. With one, rows of similar length are read
together and start in the first column: `rows × longest row` is at most the budget, and no attention mask is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from trustmopd.policies.backbone import last_hidden_states, takes_positions


def rows_under(max_tokens: int, lengths: Sequence[int], num_groups: int = 1) -> list[list[int]]:
    """Rows sorted by length, longest first, in groups of at most `max_tokens` tokens including padding; a longer row
    has its own group. At least `num_groups` groups if there are enough rows, so that all processes have as many."""
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
    """Prompts with their responses, as a backbone reads them. `predicts` marks the positions that predict a response
    token: those right before it."""

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
        """TRL's layout: prompts padded on the left, responses on the right."""
        predicts = torch.zeros_like(attention_mask, dtype=torch.bool)
        predicts[:, -response_mask.shape[1] - 1 : -1] = response_mask != 0
        return cls(input_ids, attention_mask, predicts)

    def trimmed(self, backbone: nn.Module) -> "Sequences":
        """Without columns that are padding in all rows."""
        assert self.attention_mask is not None
        used = self.attention_mask.bool().any(dim=0).nonzero()
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, self.input_ids.shape[1])
        first = first if takes_positions(backbone) else 0  # without position ids, models count from the first column
        return Sequences(self.input_ids[:, first:end], self.attention_mask[:, first:end], self.predicts[:, first:end])

    def aligned(self) -> "Sequences":
        """Every row starts in the first column, with its padding at the end. Attention is causal, so no token sees the
        padding. Without a mask, SDPA can use its flash kernel."""
        assert self.attention_mask is not None
        attended = self.attention_mask != 0
        width = max(1, int(attended.sum(dim=1).max()))
        order = (~attended).int().argsort(dim=1, stable=True)[:, :width]
        return Sequences(self.input_ids.gather(1, order), None, self.predicts.gather(1, order))

    def states(self, backbone: nn.Module) -> Float[Tensor, "N H"]:
        """The state that predicts each response token, row after row."""
        states = last_hidden_states(backbone, self.input_ids, self.attention_mask)
        return states[self.predicts.to(states.device)]  # the last layer of a model on several GPUs is on another one
