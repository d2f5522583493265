"""Random output heads with hidden states, candidates and an upstream gradient, on every device there is."""

from dataclasses import dataclass

import torch
from torch import Tensor

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
TRANSFORMS = [
    {},
    {"logit_scale": 0.0625},
    {"softcap": 3.0},
    {"logit_scale": 1.7, "softcap": 2.5},
]
SHAPES = [  # N, H, V, C
    (0, 3, 5, 2),
    (1, 1, 1, 1),
    (1, 7, 11, 11),
    (7, 5, 13, 1),
    (31, 17, 101, 13),
    (16, 32, 64, 64),
]


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
