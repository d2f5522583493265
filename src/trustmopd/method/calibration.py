"""mu: each teacher's usual score, the mean over the initial student's tokens (Eq. 3, Algorithm 1)."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


def calibrated_scores(scores: Float[Tensor, " K *N"], mu: Float[Tensor, " K"]) -> Float[Tensor, " K *N"]:
    """r = rho / mu (Eq. 3). mu is never updated, so the mean r of a later batch shows how far a teacher has drifted
    since calibration (Eq. 24)."""
    check_mu(mu)
    return scores / mu.to(scores).view(-1, *[1] * (scores.ndim - 1))


def check_mu(mu: Float[Tensor, " K"]) -> None:
    if not bool(((mu > 0) & mu.isfinite()).all()):
        raise ValueError(
            f"mu = {mu.tolist()} must be positive and finite: scores are divided by it. A teacher with mu = 0 equals "
            "the reference; drop it from the pool."
        )


class ScoreTotals:
    """S_k and N of Algorithm 1, with squares for the spread, in float64: each teacher's over the tokens where it
    speaks. `totals` can be summed across processes."""

    def __init__(self, num_teachers: int, device: torch.device | str = "cpu"):
        self.totals = torch.zeros(3 * num_teachers + 1, dtype=torch.float64, device=device)

    def add(
        self, scores: Float[Tensor, " K *N"], mask: Shaped[Tensor, "*N"], speaks: Shaped[Tensor, " K *N"] | None = None
    ) -> None:
        valid = scores[:, mask != 0].double()
        heard = torch.ones_like(valid) if speaks is None else (speaks[:, mask != 0] != 0).double()
        valid = torch.where(heard != 0, valid, 0.0)
        count = valid.new_tensor([valid.shape[-1]])
        self.totals += torch.cat([valid.sum(dim=-1), valid.square().sum(dim=-1), heard.sum(dim=-1), count])

    @property
    def tokens(self) -> int:
        return int(self.totals[-1])

    @property
    def mean(self) -> Float[Tensor, " K"]:
        sums, _, counts = self.totals[:-1].chunk(3)
        return sums / counts

    @property
    def spread(self) -> Float[Tensor, " K"]:
        """Standard deviation over tokens."""
        _, squares, counts = self.totals[:-1].chunk(3)
        return (squares / counts - self.mean.square()).clamp_min(0).sqrt()
