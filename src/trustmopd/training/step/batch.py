"""Read a batch in TRL's format: labels of the prompts, whole sequences, the tokens that count."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trustmopd.rollouts import Completion
from trustmopd.training.prompt_lengths import DRAW, ROW


def prompt_columns(inputs: Sequence[Mapping[str, Any]], domain_column: str | None) -> dict[str, Any]:
    """What goes with each response through TRL's shuffle: `row`, the prompt's place in the dataset, and `meta`, which
    the records show."""
    return {
        "row": torch.tensor([example.get(ROW, index) for index, example in enumerate(inputs)]),
        "meta": [
            {
                "id": _text(example.get("id")) or str(example.get(ROW)),
                "prompt": example["prompt"],
                "domain": _text(example.get(domain_column or "")),
                "capabilities": _texts(example.get("capabilities")),
            }
            for example in inputs
        ],
    }


def draws_of(inputs: Sequence[Mapping[str, Any]], *, seed: int, step: int, process: int) -> list[str]:
    """Names the random numbers of each prompt: by seed, step and dataset row, unless the prompt has a name for them. An
    evaluation set has no rows, so process and place are used."""
    return [
        example.get(DRAW) or f"{seed}/{step}/{example.get(ROW, f'{process}.{place}')}"
        for place, example in enumerate(inputs)
    ]


def labels_of(meta: Sequence[Mapping[str, Any]], teachers: Sequence[str]) -> Tensor:
    """The index of each prompt's own teacher."""
    if strangers := [each["domain"] for each in meta if each["domain"] not in teachers]:
        raise ValueError(
            f"label {strangers[0]!r} is not the name of a teacher ({', '.join(teachers)}). Relabel the prompt."
        )
    return torch.tensor([teachers.index(each["domain"]) for each in meta])


def _text(label: Any) -> str | None:
    return None if label is None else str(label)


def _texts(labels: Any) -> list[str] | None:
    if labels is None:
        return None
    return [str(label) for label in labels] if isinstance(labels, (list, tuple)) else [str(labels)]


def padded_logprobs(made: Sequence[Completion], completion_ids: Tensor) -> Tensor:
    """The engine's log-probabilities, padded with 0 to the shape of the responses."""
    logp = torch.zeros(completion_ids.shape)
    for row, each in enumerate(made):
        logp[row, : len(each.ids)] = torch.tensor(each.logprobs)
    return logp.to(completion_ids.device)


def sequences(batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Prompt and response as one sequence, and its attention mask."""
    input_ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    return input_ids, torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)


def response_mask(batch: dict[str, Any]) -> Tensor:
    """TRL's mask: the EOS counts, and so do all tokens of a truncated response; a tool's output does not."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def num_responses(batch: dict[str, Any]) -> Tensor:
    """The responses with at least one token that counts."""
    return (response_mask(batch) != 0).any(dim=1).sum()
