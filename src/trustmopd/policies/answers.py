"""What is asked of the frozen policies, and what comes back.

A policy reads a batch of rollouts once. Later, when the student's candidates are known, it is asked for its logits at
those candidates. What an answer stores in between is private to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from trustmopd.heads import Head
from trustmopd.policies.reading import Sequences, rows_under

#: Two token ids that change places in what a policy is asked.
Swap = tuple[int, int]
States = Mapping[int, Float[Tensor, "T H"]]


def swapped(ids: Int[Tensor, "..."], swap: Swap | None) -> Int[Tensor, "..."]:
    """A permutation, its own inverse: the ids of a set of candidates stay distinct."""
    if swap is None:
        return ids
    one, other = swap
    return torch.where(ids == one, other, torch.where(ids == other, one, ids))


@dataclass(frozen=True)
class Rollouts:
    """Prompts (padded on the left) with responses (padded on the right); `views` are the same responses to the prompts
    of policies that read others, and `swap` is for their ends. `rows` lists the responses that each policy is asked
    about; None means all. Policies read `at_a_time` rows in one pass or, with `max_tokens`, as many as fit. Answers
    stay on the device up to `bytes_on_device`; the rest goes to host memory."""

    input_ids: Int[Tensor, "B L"]
    attention_mask: Shaped[Tensor, "B L"]
    response_mask: Shaped[Tensor, "B T"]
    at_a_time: int
    rows: Mapping[str, list[int]] | None = None
    max_tokens: int | None = None
    bytes_on_device: float = float("inf")
    views: Mapping[str, "Rollouts"] = field(default_factory=dict)
    swap: Swap | None = None

    def read_by(self, name: str) -> "Rollouts":
        return self.views.get(name, self)

    def rows_of(self, name: str) -> list[int]:
        return list(range(len(self.input_ids))) if self.rows is None else self.rows.get(name, [])

    def passes(self, rows: list[int]) -> list[list[int]]:
        """Which of `rows` are read together."""
        if self.max_tokens is None:
            return [rows[start : start + self.at_a_time] for start in range(0, len(rows), self.at_a_time)]
        groups = rows_under(self.max_tokens, (self.attention_mask[rows] != 0).sum(dim=1).tolist())
        return [[rows[place] for place in group] for group in groups]

    def sequences(self, rows: list[int], backbone: nn.Module) -> Sequences:
        padded = Sequences.padded(self.input_ids[rows], self.attention_mask[rows], self.response_mask[rows])
        return padded.trimmed(backbone) if self.max_tokens is None else padded.aligned()


class Shelf:
    """Stores hidden states: on their own device while there is room, then in pinned host memory."""

    def __init__(self, bytes_on_device: float):
        self._room = bytes_on_device

    def keep(self, states: Float[Tensor, "N H"]) -> Float[Tensor, "N H"]:
        if states.nbytes <= self._room or not states.is_cuda:
            self._room -= states.nbytes
            return states
        # In stream order: nothing waits, and the memory on the device is reused only after the copy.
        return torch.empty(states.shape, dtype=states.dtype, pin_memory=True).copy_(states, non_blocking=True)


class Top(NamedTuple):
    """The likeliest tokens of a policy at each response token, over the whole vocabulary: their ids and log-
    probabilities, and the log of the sum that these were divided by."""

    ids: Int[Tensor, "N k"]
    logp: Float[Tensor, "N k"]
    log_partition: Float[Tensor, " N"]


class Answer(Protocol):
    """The answer of one policy about its rows."""

    @property
    def rows(self) -> frozenset[int]: ...

    def expect(self, rows: Sequence[int], ids: Int[Tensor, "N C"]) -> None:
        """These will be asked for next: a policy elsewhere begins now, so that all of them compute at once."""

    def logits_at(self, rows: Sequence[int], ids: Int[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        """float32 logits of the candidates `ids` at the response tokens of `rows`, row after row, on the device
        of `ids`."""

    def top(self, rows: Sequence[int], k: int) -> Top:
        """The `k` likeliest tokens at the response tokens of `rows`, row after row: the full head, where the policy
        lives."""

    def release(self) -> None:
        """Free what was stored; nothing more can be asked."""


class LocalAnswer:
    """Hidden states at the response tokens, by row, and the head that turns them into logits. Rows of the head from
    `vocab_size` on are padding; the ids of `swap` change places."""

    def __init__(self, name: str, head: Head, states: States, vocab_size: int | None = None, swap: Swap | None = None):
        self._name, self._head, self._states, self._vocab_size = name, head, dict(states), vocab_size
        self._swap = swap

    @property
    def rows(self) -> frozenset[int]:
        return frozenset(self._states)

    def expect(self, rows: Sequence[int], ids: Int[Tensor, "N C"]) -> None:
        """Computed when it is asked for."""

    @torch.no_grad()
    def logits_at(self, rows: Sequence[int], ids: Int[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        return self._head.logits_of(self._of(rows, ids.device), swapped(ids, self._swap)).float()

    @torch.no_grad()
    def top(self, rows: Sequence[int], k: int) -> Top:
        states = self._of(rows, self._head.weight.device)
        ids, log_partition = self._head.top(states, k, self._vocab_size)
        logits = self._head.logits_of(states, ids).float()
        return Top(swapped(ids, self._swap), logits - log_partition.unsqueeze(-1), log_partition)

    def _of(self, rows: Sequence[int], device: torch.device) -> Float[Tensor, "N H"]:
        if strangers := [row for row in rows if row not in self._states]:
            raise LookupError(f"'{self._name}' was not asked about row {strangers[0]}, or its answer was released.")
        return torch.cat([self._states[row].to(device, non_blocking=True) for row in rows])

    def release(self) -> None:
        self._states.clear()


class Answers(dict[str, Answer]):
    """The answers of every policy to one question, in the pool's order."""

    def release(self) -> None:
        for answer in self.values():
            answer.release()
