"""Random output heads with hidden states, candidates and an upstream gradient, on every device there is."""

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from trustmopd.heads import reference
from trustmopd.heads.shared import Projection

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
DEVICE = DEVICES[-1]  # Triton runs its kernels on a GPU where there is one, in its interpreter elsewhere
TRANSFORMS = [{}, {"logit_scale": 0.0625}, {"softcap": 3.0}, {"logit_scale": 1.7, "softcap": 2.5}]
SHAPES = [  # N, H, V, C
    (0, 3, 5, 2),
    (1, 1, 1, 1),
    (1, 7, 11, 11),
    (7, 5, 13, 1),
    (31, 17, 101, 13),
    (16, 32, 64, 64),
]
ADVERSARIAL = {
    "all_equal": torch.zeros(4, 32),
    "ascending": torch.arange(32.0).expand(4, -1),
    "descending": torch.arange(32.0).flip(0).expand(4, -1),
    "one_hot": torch.eye(4, 32) * 1e4,
    "all_tiny": torch.full((4, 32), -1e30),
    "many_ties": torch.arange(32.0).remainder(3).expand(4, -1),
}


@dataclass(frozen=True)
class Problem:
    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    ids: Tensor
    upstream: Tensor

    def leaves(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Hidden, weight and bias, fresh and asking for gradients."""
        copies = [
            None if x is None else x.detach().clone().requires_grad_() for x in (self.hidden, self.weight, self.bias)
        ]
        return copies[0], copies[1], copies[2]


def problem(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype = torch.float32,
    *,
    device: str = "cpu",
    bias: bool = True,
    seed: int = 0,
) -> Problem:
    num_tokens, hidden_size, vocab_size, num_candidates = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    ids = torch.rand(num_tokens, vocab_size, generator=generator).argsort(dim=-1)[:, :num_candidates]
    return Problem(
        hidden=normal(num_tokens, hidden_size).to(device, dtype),
        weight=normal(vocab_size, hidden_size).to(device, dtype),
        bias=normal(vocab_size).to(device, dtype) if bias else None,
        ids=ids.to(device),
        upstream=normal(num_tokens, num_candidates).to(
            device, torch.float64 if dtype == torch.float64 else torch.float32
        ),
    )


TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}


def values_and_gradients(implementation: ModuleType, case: Problem, **transform):
    leaves = case.leaves()
    hidden, weight, bias = leaves
    logits = implementation.candidate_logits(hidden, Projection(weight, bias, **transform), case.ids)
    logits.backward(case.upstream)
    return logits, [None if leaf is None else leaf.grad for leaf in leaves]


def assert_agree(implementation: ModuleType, case: Problem, **transform) -> None:
    """Values and gradients are those of the plain computation."""
    dtype = case.hidden.dtype
    logits, grads = values_and_gradients(implementation, case, **transform)
    expected, expected_grads = values_and_gradients(reference, case, **transform)
    # The logits of half-precision models are float32 too: only their gradients are rounded.
    assert logits.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=min(TOLERANCE[dtype], 1e-4))
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        if expected_grad is not None:
            assert grad.dtype == dtype
            scale = expected_grad.abs().max().item() if expected_grad.numel() else 1.0
            torch.testing.assert_close(grad, expected_grad, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


def assert_top(implementation: ModuleType, hidden, weight, count, bias=None, *, vocab_size=None, tolerance=1e-4, **kw):
    """Distinct ids whose logits are the largest ones, compared by value: ties may be broken either way."""
    ids, logsumexp = implementation.top_candidates_of(
        hidden, Projection(weight, bias, **kw), count, vocab_size=vocab_size
    )
    logits = reference.full_logits(hidden, Projection(weight, bias, **kw))[:, :vocab_size]
    assert ids.shape == (hidden.shape[0], count) and ids.dtype == torch.int64
    assert all(len(set(row)) == count for row in ids.tolist())
    chosen, largest = (x.sort(dim=-1, descending=True).values for x in (logits.gather(-1, ids), logits))
    torch.testing.assert_close(chosen, largest[:, :count], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(logsumexp, torch.logsumexp(logits, dim=-1), rtol=tolerance, atol=tolerance)
