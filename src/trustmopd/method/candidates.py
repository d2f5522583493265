"""The student's top-C support, and renormalisation on it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def check_candidate_count(num_candidates: int, vocab_size: int) -> None:
    if not 1 <= num_candidates <= vocab_size:
        raise ValueError(
            f"num_candidates = {num_candidates} does not fit a vocabulary of {vocab_size} tokens: the candidate set "
            f"holds distinct tokens. Choose a value from 1 to {vocab_size}."
        )


def top_candidates(logits: Float[Tensor, "*N V"], num_candidates: int) -> Int[Tensor, "*N C"]:
    """A_t: ids of the C largest logits. Ties at the border are broken arbitrarily."""
    check_candidate_count(num_candidates, logits.shape[-1])
    return logits.detach().topk(num_candidates, dim=-1).indices


def renormalise(logits: Float[Tensor, "*N C"]) -> Float[Tensor, "*N C"]:
    """Log-probabilities over the candidates alone. The model's own log-partition cancels, so raw logits can be
    passed."""
    return torch.log_softmax(logits, dim=-1)
