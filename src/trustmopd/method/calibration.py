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
    """S_k and N of Algorithm 1, with squares for the spread, in float64. `totals` can be summed across processes."""

    def __init__(self, num_teachers: int, device: torch.device | str = "cpu"):
        self.totals = torch.zeros(2 * num_teachers + 1, dtype=torch.float64, device=device)

    def add(self, scores: Float[Tensor, " K *N"], mask: Shaped[Tensor, "*N"]) -> None:
        valid = scores[:, mask != 0].double()
        count = valid.new_tensor([valid.shape[-1]])
        self.totals += torch.cat([valid.sum(dim=-1), valid.square().sum(dim=-1), count])

    @property
    def tokens(self) -> int:
        return int(self.totals[-1])

    @property
    def mean(self) -> Float[Tensor, " K"]:
        return self.totals[:-1].chunk(2)[0] / self.totals[-1]

    @property
    def spread(self) -> Float[Tensor, " K"]:
        """Standard deviation over tokens."""
        return (self.totals[:-1].chunk(2)[1] / self.totals[-1] - self.mean.square()).clamp_min(0).sqrt()
