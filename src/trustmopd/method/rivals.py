"""Allocation rules of other papers, on the candidates that every policy is renormalised over.

Each is as published up to two differences: log-probabilities are normalised over the candidates, not over the
vocabulary, and the candidates are the student's. `docs/rules.md` has sources, formulas and what was adapted.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from trustmopd.method.scores import negative_entropy

#: A smaller inner product of change and direction is rounding error.
_AGREES = 1e-6


@torch.no_grad()
def teaching_agreement(
    teacher_logp: Float[Tensor, "K *N C"],
    reference_logp: Float[Tensor, "*N C"] | Float[Tensor, "K *N C"],
    student_logp: Float[Tensor, "*N C"],
) -> tuple[Float[Tensor, " K *N"], Float[Tensor, " K *N"]]:
    """⟨d, g⟩ and cos(d, g) of what a teacher has learnt, d = t − r, and what it would teach, g = t − s."""
    learnt, teaches = teacher_logp - reference_logp, teacher_logp - student_logp
    inner = (learnt * teaches).sum(dim=-1)
    lengths = torch.linalg.vector_norm(learnt, dim=-1) * torch.linalg.vector_norm(teaches, dim=-1)
    return inner, torch.where(lengths > 0, inner / lengths, 0.0)


@torch.no_grad()
def expert_align_weights(
    teacher_logp: Float[Tensor, "K *N C"],
    reference_logp: Float[Tensor, "*N C"] | Float[Tensor, "K *N C"],
    student_logp: Float[Tensor, "*N C"],
) -> Float[Tensor, " K *N"]:
    """w_k ∝ cos(t_k − r, t_k − s) over the teachers that point where they have moved (MOPD-Router's ExpertAlign, arXiv
    2609.30837). Where none does, all are 0: the token is masked."""
    inner, cosine = teaching_agreement(teacher_logp, reference_logp, student_logp)
    kept = torch.where(inner > _AGREES, cosine, 0.0)
    total = kept.sum(dim=0)
    return torch.where(total > 0, kept / total, 0.0)


@torch.no_grad()
def directed_weights(weights: Float[Tensor, " K *N"], inner: Float[Tensor, " K *N"]) -> Float[Tensor, " K *N"]:
    """Weights of those alone that would move the student the way they have moved themselves; 0 where none would."""
    kept = torch.where(inner > _AGREES, weights, 0.0)
    total = kept.sum(dim=0)
    return torch.where(total > 0, kept / total, 0.0)


@torch.no_grad()
def entropy_weights(teacher_logp: Float[Tensor, "K *N C"], temperature: float = 0.1) -> Float[Tensor, " K *N"]:
    """w = softmax(−H(t_k) / temperature) (MOPD-Router's entropy rule)."""
    return torch.softmax(negative_entropy(teacher_logp) / temperature, dim=0)


@torch.no_grad()
def novelty_weights(
    teacher_logp: Float[Tensor, "K *N C"],
    student_logp: Float[Tensor, "*N C"],
    js_temperature: float = 0.1,
    temperature: float = 0.1,
) -> Float[Tensor, " K *N"]:
    """w = softmax(u / temperature), u = 1 − exp(−JS(s, t_k) / js_temperature) (MOPD-Router's accessible novelty, on
    common candidates: both hold all their mass there)."""
    teacher, student = teacher_logp.exp(), student_logp.exp()
    mixture = ((teacher + student) / 2).log()
    to_teacher = torch.where(teacher > 0, teacher * (teacher_logp - mixture), 0.0).sum(dim=-1)
    to_student = torch.where(student > 0, student * (student_logp - mixture), 0.0).sum(dim=-1)
    novelty = -torch.expm1(-(to_teacher + to_student).clamp_min(0.0) / 2 / js_temperature)
    return torch.softmax(novelty / temperature, dim=0)


@torch.no_grad()
def spread(teacher_logp: Float[Tensor, "K *N C"], student_logp: Float[Tensor, "*N C"]) -> Float[Tensor, "*N"]:
    """How far the teachers' log-probabilities of the student's first choice are apart, in nats."""
    first = student_logp.argmax(dim=-1, keepdim=True).expand(*teacher_logp.shape[:-1], 1)
    said = teacher_logp.gather(-1, first).squeeze(-1)
    return said.amax(dim=0) - said.amin(dim=0)


@torch.no_grad()
def consensus_weights(
    teacher_logp: Float[Tensor, "K *N C"],
    student_logp: Float[Tensor, "*N C"],
    routed: Float[Tensor, " K *N"],
    nats: float,
) -> Float[Tensor, " K *N"]:
    """The mean of the teachers where they agree up to `nats` on the student's first choice, else the teacher of the
    prompt's label (Open-MOPD's consensus, arXiv 2608.19098)."""
    agree = spread(teacher_logp, student_logp) <= nats
    return torch.where(agree, 1.0 / teacher_logp.shape[0], routed)


@torch.no_grad()
def largest_weights(scores: Float[Tensor, " K *N"]) -> Float[Tensor, " K *N"]:
    """All weight on the teacher with the largest calibrated score; equal ones share it."""
    largest = (scores == scores.amax(dim=0)).to(scores.dtype)
    return largest / largest.sum(dim=0)
