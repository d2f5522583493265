"""From hidden states to the `CandidateState` that the method uses: the student's candidates with every policy's
log-probabilities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from trustmopd.heads import Head
from trustmopd.method import CandidateState, renormalise
from trustmopd.policies import Answers
from trustmopd.policies.references import role_of


@dataclass(frozen=True)
class ScoredCandidates:
    """`student_mass` is the share of the student's full distribution that its candidates hold; 0 on padding.
    `sampled_logp`, where asked for, is the student's log-probability of the sampled tokens at temperature 1, over the
    N response tokens alone."""

    at: CandidateState
    student_mass: Float[Tensor, "B T"]
    sampled_logp: Float[Tensor, " N"] | None = None


def score_candidates(
    hidden: Float[Tensor, "N H"],
    student_head: Head,
    answers: Answers,
    teachers: Sequence[str],
    references: Mapping[str, str],
    rows: Sequence[int],
    sampled_ids: Int[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    *,
    num_candidates: int,
    vocab_size: int,
    temperature: float,
    step: int,
    with_sampled: bool = False,
) -> ScoredCandidates:
    """`hidden` are the student's states before the unmasked response tokens, row after row. `rows` are the numbers of
    these responses in the question that `answers` belong to. `references` names the reference of each teacher. Padding
    gets logit 0 in every model: finite, and ignored by the mask."""
    valid = mask != 0
    ids, logsumexp = student_head.top(hidden.detach(), num_candidates, vocab_size)
    student_logits = student_head.logits_of(hidden, ids)
    given = {"the student": student_logits}

    def padded(values: Tensor) -> Tensor:
        return values.new_zeros(*valid.shape, *values.shape[1:]).masked_scatter(_wide(valid, values), values)

    def asked_of(name: str) -> tuple[list[int], Tensor, Tensor | None]:
        """The rows that a policy was asked about, the candidates there, and which tokens these are: None for all."""
        known = answers[name].rows
        asked = [row in known for row in rows]
        mine = [row for row, was_asked in zip(rows, asked, strict=True) if was_asked]
        # Indexing makes the GPU wait, so it is skipped in the usual case that all tokens are asked about.
        if len(mine) in (0, len(rows)):
            return mine, ids, None
        tokens = torch.tensor(asked, device=valid.device).repeat_interleave(valid.sum(dim=1))
        return mine, ids[tokens], tokens

    questions = {name: asked_of(name) for name in (*teachers, *references.values())}
    for name, (mine, wanted, _) in questions.items():
        if mine:
            answers[name].expect(mine, wanted)

    def logits_of(name: str) -> Tensor:
        mine, wanted, tokens = questions[name]
        if not mine:
            return student_logits.new_zeros(student_logits.shape, requires_grad=False)
        found = given[role_of(name)] = answers[name].logits_at(mine, wanted)
        if tokens is None:
            return found
        logits = found.new_zeros(student_logits.shape)
        logits[tokens] = found
        return logits

    with torch.no_grad():
        teacher_logits = torch.stack([padded(logits_of(name)) for name in teachers])
        starts = {name: padded(logits_of(name)) for name in dict.fromkeys(references.values())}
        reference_logits = next(iter(starts.values()), None)
        if len(starts) > 1:
            reference_logits = torch.stack([starts[references[name]] for name in teachers])
        sampled_logp = None
        if with_sampled:
            sampled_logp = student_head.logits_of(hidden, sampled_ids[valid].unsqueeze(-1))[:, 0] - logsumexp
        mass = padded((torch.logsumexp(student_logits, dim=-1) - logsumexp).exp())
    _check_finite(given, step)
    at = CandidateState(
        student_logp=renormalise(padded(student_logits) / temperature),
        teacher_logp=renormalise(teacher_logits / temperature),
        reference_logp=None if reference_logits is None else renormalise(reference_logits / temperature),
        candidate_ids=padded(ids),
        sampled_ids=sampled_ids,
        mask=mask,
    )
    return ScoredCandidates(at, mass, sampled_logp)


def _wide(valid: Tensor, values: Tensor) -> Tensor:
    return valid.view(*valid.shape, *[1] * (values.ndim - 1)).expand(*valid.shape, *values.shape[1:])


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


def check_loss(loss: Tensor, step: int) -> None:
    if not bool(loss.isfinite()):
        raise FloatingPointError(
            f"the loss is {loss.item()} at step {step}; training stopped before it reached the student, and the last "
            "checkpoint is complete. Check the score and allocation rules, and the models' dtype."
        )
