"""`method.objective` under the paper's own rule, as one Triton kernel: displacement, trust weights, mixed target and
reverse KL.

In plain torch these are about sixty kernels over ``[K, N, C]``, and launching them costs more than their work.
"""

from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.runtime.interpreter import InterpretedFunction

from trustmopd.heads.fused import MAX_CANDIDATES
from trustmopd.heads.kernels import trust_at_token
from trustmopd.method import CandidateState, Objective, degenerate_tokens


class _TrustLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, student: Tensor, teachers: Tensor, reference: Tensor, mu: Tensor | None, gamma: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        num_teachers, *shape, num_candidates = teachers.shape
        losses, target = student.new_empty(shape), student.new_empty(student.shape)
        weights, scores = student.new_empty((2, num_teachers, *shape))
        slope = torch.empty_like(target) if ctx.needs_input_grad[0] else None
        if losses.numel():
            with torch.cuda.device_of(student):
                trust_at_token[losses.numel(),](
                    student.contiguous(),
                    teachers.contiguous(),
                    reference.contiguous(),
                    mu,
                    losses,
                    weights,
                    scores,
                    target,
                    slope,
                    losses.numel(),
                    num_candidates,
                    gamma,
                    NUM_TEACHERS=num_teachers,
                    OWN_REFERENCES=reference.ndim == teachers.ndim,
                    HAS_MU=mu is not None,
                    HAS_SLOPE=slope is not None,
                    BLOCK_K=triton.next_power_of_2(num_teachers),
                    BLOCK_C=triton.next_power_of_2(num_candidates),
                    num_warps=1 if num_candidates <= 256 else 4,
                )
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(weights, scores, target)
        return losses, weights, scores, target

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return grad.unsqueeze(-1) * slope, None, None, None, None


def unsupported(at: CandidateState) -> str | None:
    """Why the kernel does not support these tokens; None if it does."""
    if at.reference_logp is None:
        return "there is no reference to measure displacement from"
    if at.speaks is not None:
        return "a teacher is silent at some tokens"
    if not at.student_logp.is_cuda and not isinstance(trust_at_token, InterpretedFunction):
        return f"they need a GPU, and the log-probabilities are on {at.student_logp.device}"
    if at.student_logp.shape[-1] > MAX_CANDIDATES:
        return f"C = {at.student_logp.shape[-1]} is over their limit of {MAX_CANDIDATES}"
    dtypes = {logp.dtype for logp in (at.student_logp, at.teacher_logp, at.reference_logp)}
    return None if dtypes == {torch.float32} else f"they take float32, not {', '.join(sorted(map(str, dtypes)))}"


def trust_objective(at: CandidateState, mu: Float[Tensor, " K"] | None, gamma: float) -> Objective:
    """`objective(at, trust(gamma), SCORES["displacement"], mu)` of float32 log-probabilities."""
    assert at.reference_logp is not None
    mu = None if mu is None else mu.to(at.teacher_logp).contiguous()
    token_loss, weights, scores, target = _TrustLoss.apply(
        at.student_logp, at.teacher_logp.detach(), at.reference_logp.detach(), mu, gamma
    )
    return Objective(token_loss, weights, scores, target, (at.mask != 0) & degenerate_tokens(scores))
