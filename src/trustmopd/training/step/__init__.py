"""One training step, as functions of a frozen `Batch`: sample → ask → candidates → objective → note. Nothing here knows
TRL or keeps a part of a batch, so that the next one can be sampled and asked while this one is learnt from."""

from trustmopd.training.step.ask import ask
from trustmopd.training.step.batch import ENTRIES, Batch, StepContext, batch_of
from trustmopd.training.step.candidates import ScoredCandidates, candidates_of
from trustmopd.training.step.emphasis import GroupEmphasis
from trustmopd.training.step.note import StepLog
from trustmopd.training.step.objective import entropy_of, loss_of, objective_of
from trustmopd.training.step.reasoning import without_reasoning
from trustmopd.training.step.sample import Turns, next_turn, rollouts_of, rows_of, sampled
from trustmopd.training.step.token_budget import loss_in_passes, micro_batches

__all__ = [
    "ENTRIES",
    "Batch",
    "GroupEmphasis",
    "ScoredCandidates",
    "StepContext",
    "StepLog",
    "Turns",
    "ask",
    "batch_of",
    "candidates_of",
    "entropy_of",
    "loss_in_passes",
    "loss_of",
    "micro_batches",
    "next_turn",
    "objective_of",
    "rollouts_of",
    "rows_of",
    "sampled",
    "without_reasoning",
]
