"""Judge rollouts: the student's candidates, every frozen policy's log-probabilities of them, and the objective."""

from typing import Any

import torch
from torch import Tensor

from trustmopd.heads import Head, trust_objective
from trustmopd.method import SCORES, Objective, objective
from trustmopd.policies import Answers, Rollouts, TeacherPool
from trustmopd.policies.backbone import backbone_of
from trustmopd.policies.reading import Sequences
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.step.allocation import MicroBatch, allocation_rule
from trustmopd.training.step.batch import response_mask, sequences
from trustmopd.training.step.candidates import ScoredCandidates, score_candidates
from trustmopd.training.step.timing import PhaseClock


class Judge:
    """Asks the pool about a batch of rollouts once, then judges its micro-batches one by one. `mixed` is the dtype in
    which the student's layers compute, if it is not that of their weights."""

    def __init__(
        self,
        args: TrustMOPDConfig,
        pool: TeacherPool,
        vocab_size: int,
        clock: PhaseClock,
        mixed: torch.dtype | None,
    ):
        self.args = args
        self.pool = pool
        self.vocab_size = vocab_size
        self.clock = clock
        self.mixed = mixed
        self._answers: Answers | None = None

    def ask(self, batch: dict[str, Any]) -> Tensor:
        """Let every frozen policy read the batch. Returns a number for each row, which goes with it through TRL's
        shuffle and split. Answers about the previous batch are released."""
        rows = None
        if "label" in batch:
            labels = batch["label"].tolist()
            names = enumerate(self.pool.teachers)
            rows = {name: [i for i, label in enumerate(labels) if label == k] for k, name in names}
        self.release()
        rollouts = Rollouts(
            *sequences(batch),
            response_mask(batch),
            self.args.per_device_train_batch_size,
            rows,
            self.args.max_tokens_per_micro_batch,
            self.args.answers_on_device_gib * 2**30,
        )
        self._answers = self.pool.ask(rollouts, timer=self.clock)
        return torch.arange(len(batch["completion_ids"]))

    def release(self) -> None:
        if self._answers is not None:
            self._answers.release()
        self._answers = None

    def judge(
        self, student: Any, batch: dict[str, Any], *, mu: Tensor | None, step: int
    ) -> tuple[ScoredCandidates, Objective]:
        """Score the response tokens of a micro-batch and compute the objective. `step` counts the steps made so far. If
        the frozen policies have not read this batch yet, they read it now."""
        args = self.args
        asked = batch["asked"] if "asked" in batch else self.ask(batch)
        assert self._answers is not None
        with self.clock("student"):
            sampled_ids = batch["completion_ids"]
            read = Sequences.padded(*sequences(batch), response_mask(batch))
            read = read if args.max_tokens_per_micro_batch is None else read.aligned()
            # accelerate's own autocast is in the student's `forward`, which is not called here.
            with torch.autocast(sampled_ids.device.type, self.mixed, enabled=self.mixed is not None):
                hidden = read.states(backbone_of(student))
            scored = score_candidates(
                hidden.to(self.mixed or hidden.dtype),
                Head.of(student),
                self._answers,
                self.pool.teachers,
                self.pool.references,
                asked.tolist(),
                sampled_ids,
                response_mask(batch),
                num_candidates=args.num_candidates,
                vocab_size=self.vocab_size,
                temperature=args.distillation_temperature,
                step=step + 1,
                with_sampled="rollout_logp" in batch,
            )
            if args.is_papers_own:
                return scored, trust_objective(scored.at, mu, args.gamma)
            rows = batch["row"] if "row" in batch else torch.arange(len(sampled_ids))
            rule = allocation_rule(MicroBatch(args, self.pool.teachers, step, rows, batch.get("label")))
            score = None if not args.scored else args.score if callable(args.score) else SCORES[args.score]
            return scored, objective(scored.at, rule, score, mu, args.granularity)
