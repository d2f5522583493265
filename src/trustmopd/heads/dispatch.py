"""The two public functions, their argument checks, and the choice of implementation."""

from types import ModuleType

from jaxtyping import Float, Int
from torch import Tensor

from trustmopd.heads import chunked, reference
from trustmopd.method.candidates import check_candidate_count

IMPLEMENTATIONS: dict[str, ModuleType] = {"reference": reference, "chunked": chunked}
_active = "chunked"


class use_implementation:
    """Set the implementation from here on, or, as a context manager, inside a `with` block only."""

    def __init__(self, name: str):
        global _active
        if name not in IMPLEMENTATIONS:
            raise ValueError(
                f"there is no head implementation '{name}': only those listed compute candidate logits. "
                f"Choose from {', '.join(IMPLEMENTATIONS)}."
            )
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
    Autocast does not reach inside: the log-ratios between models are smaller than bfloat16 can tell apart."""
    return IMPLEMENTATIONS[_active].candidate_logits(
        hidden, weight, ids, bias, logit_scale=logit_scale, softcap=softcap
    )


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
    """Ids of the C largest logits, and the logsumexp over the vocabulary; no gradient. `vocab_size` leaves out the rows
    behind it: padding that no tokenizer can produce would otherwise take candidates and mass."""
    num_rows = weight.shape[0]
    if vocab_size is not None and not 1 <= vocab_size <= num_rows:
        raise ValueError(
            f"vocab_size = {vocab_size} does not fit an output head of {num_rows} rows: it can only leave rows out. "
            f"Pass the tokenizer's size, from 1 to {num_rows}, or None for all rows."
        )
    check_candidate_count(num_candidates, num_rows if vocab_size is None else vocab_size)
    return IMPLEMENTATIONS[_active].top_candidates_of(
        hidden, weight, num_candidates, bias, logit_scale=logit_scale, softcap=softcap, vocab_size=vocab_size
    )
