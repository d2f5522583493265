"""From a batch to the `CandidateState` that the method uses: the candidates of the student that learns, with every
policy's log-probabilities."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trustmopd.heads import Head
from trustmopd.method import CandidateState, renormalise
from trustmopd.policies import TeacherPool
from trustmopd.policies.backbone import backbone_of
from trustmopd.policies.graph import role_of
from trustmopd.policies.reading import Sequences
from trustmopd.training.step.batch import Batch, StepContext


@dataclass(frozen=True)
class ScoredCandidates:
    """`student_mass` is the share of the student's full distribution that its candidates hold; 0 on padding.
    `sampled_logp`, where the engine gave its own, is the student's log-probability of the sampled tokens at temperature
    1, over the N response tokens alone."""

    at: CandidateState
    student_mass: Float[Tensor, "B T"]
    sampled_logp: Float[Tensor, " N"] | None = None


def candidates_of(context: StepContext, student: Any, batch: Batch, step: int) -> ScoredCandidates:
    """`step` is named in errors. Padding gets logit 0 in every model: finite, and ignored by the mask."""
    args, pool, valid = context.args, context.pool, batch.mask != 0
    hidden, head = _hidden_states(context, student, batch), Head.of(student)
    ids, logsumexp = head.top(hidden.detach(), args.num_candidates, context.vocab_size)
    student_logits = head.logits_of(hidden, ids)

    def padded(values: Tensor) -> Tensor:
        wide = valid.view(*valid.shape, *[1] * (values.ndim - 1)).expand(*valid.shape, *values.shape[1:])
        return values.new_zeros(wide.shape).masked_scatter(wide, values)

    def renormalised(logits: Tensor) -> Tensor:
        return renormalise(logits / args.distillation_temperature)

    with torch.no_grad():
        frozen = _frozen_logits(pool, batch, ids)
        teacher_logits = torch.stack([padded(frozen[name]) for name in pool.teachers])
        references = {name: padded(frozen[name]) for name in dict.fromkeys(pool.references.values())}
        reference_logits = next(iter(references.values()), None)
        if len(references) > 1:
            reference_logits = torch.stack([references[pool.references[name]] for name in pool.teachers])
        initial = None if pool.initial is None else renormalised(padded(frozen[pool.initial]))
        sampled_logp = None
        if batch.engine_logp is not None:
            sampled_logp = head.logits_of(hidden, batch.response_ids[valid].unsqueeze(-1))[:, 0] - logsumexp
        mass = padded((torch.logsumexp(student_logits, dim=-1) - logsumexp).exp())
    _check_finite({"the student": student_logits, **{role_of(name): found for name, found in frozen.items()}}, step)
    at = CandidateState(
        student_logp=renormalised(padded(student_logits)),
        teacher_logp=renormalised(teacher_logits),
        reference_logp=None if reference_logits is None else renormalised(reference_logits),
        candidate_ids=padded(ids),
        sampled_ids=batch.response_ids,
        mask=batch.mask,
        initial_logp=initial,
    )
    return ScoredCandidates(at, mass, sampled_logp)


def _hidden_states(context: StepContext, student: Any, batch: Batch) -> Tensor:
    """The student's states before the response tokens, row after row."""
    read = Sequences.padded(*batch.sequences, batch.mask)
    read = read if context.args.max_tokens_per_micro_batch is None else read.aligned()
    # accelerate's own autocast is in the student's `forward`, which is not called here.
    mixed = context.mixed_dtype
    with torch.autocast(batch.mask.device.type, mixed, enabled=mixed is not None):
        hidden = read.states(backbone_of(student))
    return hidden.to(mixed or hidden.dtype)


def _frozen_logits(pool: TeacherPool, batch: Batch, ids: Int[Tensor, "N C"]) -> dict[str, Float[Tensor, "N C"]]:
    """Of every teacher and reference; 0 at tokens that it was not asked about. All are told first what they will be
    asked for: those elsewhere compute at once."""
    assert batch.answers is not None
    questions = {}
    for name in batch.answers:
        known = batch.answers[name].rows
        asked = [row in known for row in batch.asked]
        rows = [row for row, was_asked in zip(batch.asked, asked, strict=True) if was_asked]
        tokens = None
        if len(rows) not in (0, len(batch)):  # in the usual case indexing is spared, for which a GPU would wait
            tokens = torch.tensor(asked, device=ids.device).repeat_interleave((batch.mask != 0).sum(dim=1))
        questions[name] = rows, ids if tokens is None else ids[tokens], tokens
    for name, (rows, wanted, _) in questions.items():
        if rows:
            batch.answers[name].expect(rows, wanted)
    logits = {}
    for name, (rows, wanted, tokens) in questions.items():
        if rows and tokens is None:
            logits[name] = batch.answers[name].logits_at(rows, wanted)
            continue
        logits[name] = torch.zeros(ids.shape, device=ids.device)
        if rows:
            logits[name][tokens] = batch.answers[name].logits_at(rows, wanted)
    return logits


def _check_finite(given: dict[str, Tensor], step: int) -> None:
    """All models at once, so that the GPU has to wait only once."""
    finite = torch.stack([torch.isfinite(logits).all() for logits in given.values()]).tolist()
    for (who, logits), sound in zip(given.items(), finite, strict=True):
        if not sound:
            bad = int((~torch.isfinite(logits)).any(dim=-1).sum())
            raise FloatingPointError(
                f"{who} gave NaN or infinite logits at step {step}, on {bad} of {len(logits)} response tokens; "
                "training stopped before they reached the student, and the last checkpoint is complete. Check this "
                "model's weights and its dtype (float16 can overflow; bfloat16 does not)."
            )
