"""The weights w: how supervision is shared among the teachers, one function per rule. Weights are non-negative, sum to
one over the leading axis, and carry no gradient. Where no teacher speaks they are all 0: such a token is masked."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Generator, Tensor

from trustmopd.method.calibration import calibrated_scores


def check_gamma(gamma: float) -> None:
    if not 0.0 < gamma < float("inf"):
        raise ValueError(
            f"gamma = {gamma} is not a positive number: it is the exponent that sharpens calibrated scores into "
            "weights. The paper uses 7; values from 3 to 9 were tried. For equal weights use allocation='uniform'."
        )


def degenerate_tokens(scores: Float[Tensor, " K *N"]) -> Shaped[Tensor, "*N"]:
    """True where every teacher scores 0, so no teacher can be preferred."""
    return (scores == 0).all(dim=0)


@torch.no_grad()
def among_speakers(weights: Float[Tensor, " K *N"], speaks: Shaped[Tensor, " K *N"] | None) -> Float[Tensor, " K *N"]:
    """The weights of those who speak, in the same proportions; all 0 where these have none. None: all speak."""
    if speaks is None:
        return weights
    heard = torch.where(speaks != 0, weights, 0.0)
    total = heard.sum(dim=0)
    return torch.where(total > 0, heard / total, 0.0)


@torch.no_grad()
def trust_weights(
    scores: Float[Tensor, " K *N"],
    mu: Float[Tensor, " K"] | None,
    gamma: float,
    speaks: Shaped[Tensor, " K *N"] | None = None,
) -> Float[Tensor, " K *N"]:
    """w_k ∝ (rho_k / mu_k)^gamma (Eq. 4), in log space: 7th powers of small scores would underflow. `mu=None` leaves
    the scores uncalibrated. A teacher with score 0 gets weight 0, as does one that does not speak. If the scores of all
    who speak are 0, their weights are uniform."""
    check_gamma(gamma)
    scores = scores if speaks is None else torch.where(speaks != 0, scores, 0.0)
    calibrated = scores if mu is None else calibrated_scores(scores, mu)
    weights = torch.softmax(gamma * calibrated.log(), dim=0)
    return among_speakers(torch.where(degenerate_tokens(scores), 1.0 / scores.shape[0], weights), speaks)


def uniform_weights(
    num_teachers: int, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Float[Tensor, " K *N"]:
    """w_k = 1/K."""
    return torch.full((num_teachers, *shape), 1.0 / num_teachers, dtype=dtype, device=device)


def random_weights(
    num_teachers: int, shape: tuple[int, ...], generator: Generator, *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, " K *N"]:
    """w ~ Dirichlet(1, …, 1), independently at each token, on the generator's device. Drawn token by token, so the
    weights of the first tokens do not depend on how many follow."""
    uniform = torch.rand((*shape, num_teachers), generator=generator, dtype=torch.float64, device=generator.device)
    exponential = -torch.log1p(-uniform)
    return (exponential / exponential.sum(dim=-1, keepdim=True)).movedim(-1, 0).to(dtype)


def single_weights(
    num_teachers: int,
    shape: tuple[int, ...],
    index: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Float[Tensor, " K *N"]:
    """All weight on one teacher."""
    if not 0 <= index < num_teachers:
        raise ValueError(
            f"teacher index {index} is outside a pool of {num_teachers}. Choose from 0 to {num_teachers - 1}."
        )
    weights = torch.zeros((num_teachers, *shape), dtype=dtype, device=device)
    weights[index] = 1.0
    return weights


def routed_weights(
    num_teachers: int, labels: Int[Tensor, " B"], num_tokens: int, *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "K B T"]:
    """w_k = 1 where k is the label of the response's prompt (Eq. 1, MOPD)."""
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < num_teachers:
        raise ValueError(
            f"labels {labels.tolist()} must name one of {num_teachers} teachers, from 0 to {num_teachers - 1}."
        )
    chosen = torch.nn.functional.one_hot(labels.long(), num_teachers).to(dtype)
    return chosen.T.unsqueeze(-1).expand(-1, -1, num_tokens).contiguous()


@torch.no_grad()
def response_level(weights: Float[Tensor, "K B T"], mask: Shaped[Tensor, "B T"]) -> Float[Tensor, "K B T"]:
    """Each response's mean weights, at every one of its tokens (Eq. 35). A teacher keeps its total weight and loses its
    timing. A masked token (all weights 0) stays masked, and is not averaged over. An empty response gets uniform
    weights, which are never used."""
    taught = (weights != 0).any(dim=0)
    valid = (mask != 0) & taught
    count = valid.sum(dim=-1)
    total = torch.where(valid, weights, 0.0).sum(dim=-1)
    mean = torch.where(count > 0, total / count.clamp_min(1), 1.0 / weights.shape[0])
    return torch.where(taught, mean.unsqueeze(-1), 0.0)
