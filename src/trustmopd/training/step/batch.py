"""What goes through a step: a frozen batch of rollouts, which carries everything that belongs to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from trustmopd.policies import Answers, TeacherPool
from trustmopd.prompts.views import PromptViews
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.step.timing import PhaseClock

if TYPE_CHECKING:
    from trustmopd.training.step.emphasis import GroupEmphasis

#: The one key of ours in TRL's dict: a list with an `Entry` for each row, which TRL shuffles and splits.
ENTRIES = "rollouts"
_PROMPT, _RESPONSE = ("prompt_ids", "prompt_mask"), ("response_ids", "attended", "mask", "engine_logp")


@dataclass(frozen=True)
class StepContext:
    """What all steps of a run have in common. `vocab_size` counts the rows that all models have. `mixed_dtype` is what
    the student's layers compute in, if it is not the dtype of their weights. `emphasis` weighs groups of tokens, if
    they do not all count alike. `views` are those of policies that read other prompts."""

    args: TrustMOPDConfig
    pool: TeacherPool
    vocab_size: int
    clock: PhaseClock
    mixed_dtype: torch.dtype | None = None
    emphasis: "GroupEmphasis | None" = None
    views: PromptViews = field(default_factory=PromptViews)


class RolloutId(NamedTuple):
    """A prompt's place in the dataset, and which of its responses in the batch this is."""

    row: int
    sample: int = 0


@dataclass(frozen=True)
class Rollout:
    """Whose response it is. `draw` names its random numbers, which no other rollout of the run has. `teacher` is the
    index of the prompt's own teacher, if the rule routes by it. `recorded`: it is one of those that a step records.
    `read` is the prompt as policies with a view of their own read it, in token ids; `shown` is its text, for records,
    without what a view takes from a column of its own."""

    id: RolloutId
    draw: str
    prompt: Any = None
    prompt_id: str = ""
    domain: str | None = None
    capabilities: list[str] | None = None
    teacher: int | None = None
    recorded: bool = False
    read: Mapping[str, list[int]] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts (padded on the left) with their responses (padded on the right).

    `attended` marks a response's tokens, `mask` those that count: the EOS does, and so do all tokens of a truncated
    response; a tool's output does not. `engine_logp` are the log-probabilities that the engine sampled with, `answers`
    those of the frozen policies, and `asked` the rows' numbers in their question."""

    rollouts: tuple[Rollout, ...]
    prompt_ids: Int[Tensor, "B P"]
    prompt_mask: Shaped[Tensor, "B P"]
    response_ids: Int[Tensor, "B T"]
    attended: Shaped[Tensor, "B T"]
    mask: Shaped[Tensor, "B T"]
    engine_logp: Float[Tensor, "B T"] | None = None
    answers: Answers | None = None
    asked: tuple[int, ...] = ()

    @classmethod
    def of(cls, generated: Mapping[str, Any], rollouts: Sequence[Rollout] | None = None, **parts: Any) -> "Batch":
        """From TRL's tensors. Without `rollouts`, the rows are only numbered."""
        attended = generated["completion_mask"]
        numbered = [Rollout(RolloutId(row), str(row)) for row in range(len(attended))]
        return cls(
            tuple(numbered if rollouts is None else rollouts),
            generated["prompt_ids"],
            generated["prompt_mask"],
            generated["completion_ids"],
            attended,
            attended * generated["tool_mask"] if "tool_mask" in generated else attended,
            **parts,
        )

    def __len__(self) -> int:
        return len(self.rollouts)

    @property
    def sequences(self) -> tuple[Tensor, Tensor]:
        """Prompt and response as one sequence, and its attention mask."""
        input_ids = torch.cat([self.prompt_ids, self.response_ids], dim=1)
        return input_ids, torch.cat([self.prompt_mask, self.attended], dim=1)

    @property
    def num_responses(self) -> Tensor:
        """The responses with at least one token that counts."""
        return (self.mask != 0).any(dim=1).sum()

    def part(self, rows: Sequence[int]) -> "Batch":
        """Some rows, with the same answers."""
        if list(rows) == list(range(len(self))):
            return self
        index = torch.tensor(rows, device=self.mask.device)
        return replace(
            self,
            rollouts=tuple(self.rollouts[row] for row in rows),
            asked=tuple(self.asked[row] for row in rows) if self.asked else (),
            **self._tensors(_PROMPT + _RESPONSE, index),
        )

    def trimmed(self) -> "Batch":
        """Without columns that are padding in all rows."""
        prompt, response = (max(1, int((mask != 0).sum(dim=1).max())) for mask in (self.prompt_mask, self.attended))
        prompts = self._tensors(_PROMPT, (slice(None), slice(-prompt, None)))
        return replace(self, **prompts, **self._tensors(_RESPONSE, (slice(None), slice(response))))

    def _tensors(self, names: Sequence[str], index: Any) -> dict[str, Any]:
        return {name: tensor[index] for name in names if (tensor := getattr(self, name)) is not None}

    def entries(self) -> "list[Entry]":
        return [Entry(self, row) for row in range(len(self))]

    def release(self) -> None:
        """Free the answers. Whoever needs the batch again must ask again."""
        if self.answers is not None:
            self.answers.release()
            self.answers.clear()


class Entry(NamedTuple):
    """A row of a batch, on its way through TRL."""

    batch: Batch
    row: int


def batch_of(inputs: Mapping[str, Any]) -> Batch:
    """The rows that TRL hands back, or, if it is not asked yet, a batch of TRL's tensors alone."""
    entries: Sequence[Entry] = inputs.get(ENTRIES, ())
    return entries[0].batch.part([entry.row for entry in entries]) if entries else Batch.of(inputs)
