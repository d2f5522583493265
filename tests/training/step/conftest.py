"""Batches of given responses, and a pool whose policies read each response alone, without padding."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tiny import VOCAB
from torch import Tensor

from trustmopd import TrustMOPDConfig
from trustmopd.heads import Head
from trustmopd.policies import REFERENCE, Answers, Rollouts, TeacherPool
from trustmopd.policies.answers import LocalAnswer
from trustmopd.training.step import Batch, StepContext
from trustmopd.training.step.batch import Rollout, RolloutId
from trustmopd.training.step.timing import PhaseClock

CANDIDATES = 12
#: Prompt and response by row: a response of one token, an empty one.
LENGTHS = ((3, 5), (9, 1), (1, 7), (6, 0), (4, 3))


class PlainPool(TeacherPool):
    def __init__(self, models: Mapping[str, Any], references: Mapping[str, str]) -> None:
        self.models, self.references, self.elsewhere = models, dict(references), None
        self.initial: str | None = None
        self.questions: list[Rollouts] = []

    @property
    def teachers(self) -> list[str]:
        return [name for name in self.models if not name.startswith(REFERENCE)]

    @torch.no_grad()
    def ask(self, rollouts: Rollouts, *, timer: Any = lambda phase: nullcontext()) -> Answers:
        self.questions.append(rollouts)

        def states(model: Any, row: int) -> Tensor:
            tokens = int((rollouts.response_mask[row] != 0).sum())
            ids = rollouts.input_ids[row][rollouts.attention_mask[row] != 0]
            return model.model(ids[None]).last_hidden_state[0, len(ids) - 1 - tokens : len(ids) - 1]

        return Answers(
            {
                name: LocalAnswer(name, Head.of(model), {row: states(model, row) for row in rollouts.rows_of(name)})
                for name, model in self.models.items()
            }
        )


@pytest.fixture
def pool(family):
    references = dict.fromkeys(family.specialists, REFERENCE)
    return PlainPool({**family.specialists, REFERENCE: family.base}, references)


@pytest.fixture
def context_of(pool, tmp_path):
    def make(pool=pool, **settings):
        given = {"output_dir": str(tmp_path), "num_candidates": CANDIDATES, "use_cpu": True, "bf16": False}
        args = TrustMOPDConfig(**given | {"global_batch_size": 4} | settings)
        return StepContext(args, pool, VOCAB, PhaseClock(torch.device("cpu")))

    return make


@pytest.fixture
def batch_of_lengths():
    """Random tokens; prompts padded on the left, responses on the right."""

    def make(lengths=LENGTHS, seed=0, teachers=None, **parts):
        generator, tensors = torch.Generator().manual_seed(seed), {}
        for side, own in zip(("prompt", "completion"), zip(*lengths, strict=True), strict=True):
            tensors[f"{side}_ids"] = ids = torch.zeros(len(own), max(own)).long()
            tensors[f"{side}_mask"] = mask = torch.zeros_like(ids)
            for row, length in enumerate(own):
                span = slice(max(own) - length, None) if side == "prompt" else slice(length)
                ids[row, span] = torch.randint(4, VOCAB, (length,), generator=generator)
                mask[row, span] = 1
        rollouts = [
            Rollout(RolloutId(row), f"1/0/{row}", f"prompt {row}", f"p{row}", teacher=teachers and teachers[row])
            for row in range(len(lengths))
        ]
        return Batch.of(tensors, rollouts, **parts)

    return make
