"""The public functions, their argument checks, and the choice of implementation."""

import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trustmopd.heads import chunked, reference
from trustmopd.heads.shared import Projection, check_ids
from trustmopd.method import SCORES, CandidateState, Objective, objective, trust
from trustmopd.method.allocation import check_gamma
from trustmopd.method.calibration import check_mu
from trustmopd.method.candidates import check_candidate_count

#: `auto` is `fused` on a GPU if its kernels support the problem, and `chunked` otherwise.
IMPLEMENTATIONS = ("auto", "fused", "chunked", "reference")
_active = "auto"


class use_implementation:
    """Set the implementation from now on; as a context manager, only inside the `with` block."""

    def __init__(self, name: str):
        global _active
        if name not in IMPLEMENTATIONS:
            raise ValueError(f"there is no head implementation '{name}'. Choose from {', '.join(IMPLEMENTATIONS)}.")
        self._previous, _active = _active, name

    def __enter__(self) -> None: ...

    def __exit__(self, *exc_info: object) -> None:
        global _active
        _active = self._previous


def candidate_logits(
    hidden: Float[Tensor, "N H"],
    weight: Float[Tensor, "V H"],
    ids: Int[Tensor, "N C"],
    bias: Float[Tensor, " V"] | None = None,
    *,
    logit_scale: float = 1.0,
    softcap: float | None = None,
) -> Float[Tensor, "N C"]:
    """Logits of each token's candidates, float32 (float64 if an input is), differentiable in hidden, weight and bias.
    Autocast has no effect: the log-ratios between models are too small for bfloat16."""
    _check_fit(hidden, weight, bias, ids)
    check_ids(ids, weight.shape[0])
    return unchecked_candidate_logits(hidden, Projection(weight, bias, logit_scale, softcap), ids)


def unchecked_candidate_logits(hidden: Tensor, head: Projection, ids: Tensor) -> Tensor:
    """For ids from `top_candidates_of`, which need no check: on a GPU, a check waits for all earlier work."""
    return _implementation_for(hidden, head.weight, ids.shape[1]).candidate_logits(hidden, head, ids)


def top_candidates_of(
    hidden: Float[Tensor, "N H"],
    weight: Float[Tensor, "V H"],
    num_candidates: int,
    bias: Float[Tensor, " V"] | None = None,
    *,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    vocab_size: int | None = None,
) -> tuple[Int[Tensor, "N C"], Float[Tensor, " N"]]:
    """Ids of the C largest logits, and the logsumexp over the vocabulary; no gradient. Rows from `vocab_size` on are
    left out: they are padding that no tokenizer produces, and would take candidates and probability."""
    return top_of(hidden, Projection(weight, bias, logit_scale, softcap), num_candidates, vocab_size)


def top_of(hidden: Tensor, head: Projection, num_candidates: int, vocab_size: int | None) -> tuple[Tensor, Tensor]:
    _check_fit(hidden, head.weight, head.bias)
    num_rows = head.weight.shape[0]
    if vocab_size is not None and not 1 <= vocab_size <= num_rows:
        raise ValueError(
            f"vocab_size = {vocab_size} does not fit an output head of {num_rows} rows: it can only leave rows out. "
            f"Pass the tokenizer's size, from 1 to {num_rows}, or None for all rows."
        )
    check_candidate_count(num_candidates, num_rows if vocab_size is None else vocab_size)
    implementation = _implementation_for(hidden, head.weight, num_candidates)
    return implementation.top_candidates_of(hidden, head, num_candidates, vocab_size)


def trust_objective(at: CandidateState, mu: Float[Tensor, " K"] | None, gamma: float) -> Objective:
    """The paper's objective, with displacement token by token: one kernel where the fused head runs, the functions of
    `trustmopd.method` elsewhere."""
    fused = _fused_for("fused_objective", "the objective comes from plain torch", at.student_logp, at)
    if fused is None:
        return objective(at, trust(gamma), SCORES["displacement"], mu)
    check_gamma(gamma)
    _check_state(at, mu)
    return fused.trust_objective(at, mu, gamma)


def _implementation_for(hidden: Tensor, weight: Tensor, num_candidates: int) -> ModuleType:
    if _active == "reference":
        return reference
    instead = "candidate logits come from the chunked head"
    return _fused_for("fused", instead, hidden, hidden, weight, num_candidates) or chunked


def _fused_for(name: str, instead: str, tensor: Tensor, *problem: Any) -> ModuleType | None:
    """The module with the kernels, if they are selected and support this problem. If they do not support it, a warning
    says why."""
    if _active in ("reference", "chunked") or (_active == "auto" and not tensor.is_cuda):
        return None
    fused = _module(name)
    why_not = "Triton is not installed" if fused is None else fused.unsupported(*problem)
    if why_not:
        _say_once(f"{instead}, not the fused kernels: {why_not}.")
        return None
    return fused


@cache
def _module(name: str) -> ModuleType | None:
    """Imported when first needed: a machine without a GPU does not need Triton."""
    return import_module(f"trustmopd.heads.{name}") if find_spec("triton") else None


@cache
def _say_once(message: str) -> None:
    warnings.warn(message, stacklevel=5)


def _check_state(at: CandidateState, mu: Tensor | None) -> None:
    """The kernel takes the student's shape for all tensors, and would read past the end of a smaller one."""
    num_teachers, shape = len(at.teacher_logp), at.student_logp.shape
    one_each = at.teacher_logp.shape[:1] + shape
    fitting = {"teacher_logp": (one_each,), "reference_logp": (shape, one_each)}
    for name, shapes in fitting.items():
        if getattr(at, name) is not None and getattr(at, name).shape not in shapes:
            raise ValueError(
                f"{name} has shape {tuple(getattr(at, name).shape)}, which does not fit student_logp's {tuple(shape)}: "
                "every model is asked about the same candidates. Score them on one batch."
            )
    if mu is not None:
        if mu.shape != (num_teachers,):
            raise ValueError(f"mu has shape {tuple(mu.shape)} for {num_teachers} teachers. Give one number each.")
        check_mu(mu)


def _check_fit(hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor | None = None) -> None:
    fits = hidden.ndim == weight.ndim == 2 and hidden.shape[1] == weight.shape[1]
    fits &= bias is None or bias.shape == weight.shape[:1]
    fits &= ids is None or (ids.ndim == 2 and len(ids) == len(hidden))
    if not fits:
        tensors = {"hidden": hidden, "weight": weight, "bias": bias, "ids": ids}
        shapes = [f"{name} has shape {tuple(tensor.shape)}" for name, tensor in tensors.items() if tensor is not None]
        raise ValueError(
            f"{', '.join(shapes)}, but hidden must be [N, H], weight [V, H], bias [V] and ids [N, C]. Pass the states "
            "and the head of one model, with the batch flattened, and one row of ids per token."
        )
    for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if tensor is not None and not tensor.is_floating_point():
            raise ValueError(
                f"{name} has dtype {tensor.dtype}, which cannot hold fractions. Pass a floating-point tensor."
            )
    if ids is not None and ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"ids have dtype {ids.dtype}, but they are row numbers. Pass torch.int64 or torch.int32.")
    for name, tensor in (("weight", weight), ("bias", bias), ("ids", ids)):
        if tensor is not None and tensor.device != hidden.device:
            raise ValueError(
                f"{name} is on {tensor.device} and the hidden states are on {hidden.device}: one kernel reads both. "
                "Move them to one device."
            )
