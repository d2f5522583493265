"""The axes of every tensor in this package, and the record that allocation rules read.

    K  teachers, in the order of the pool          B  responses (rollouts) of a batch
    C  candidate tokens at one position            T  response tokens, right-padded to the longest
    V  vocabulary                                  N  any leading shape: [T], [B, T], or the valid tokens in one row
    H  hidden size of one model

Teachers lead, candidates trail. Annotations such as ``Float[Tensor, "K *N C"]`` state the shape; they are checked
while the tests run and cost nothing otherwise.
"""

from dataclasses import dataclass

from jaxtyping import Float, Int, Shaped
from torch import Tensor


@dataclass(frozen=True)
class CandidateState:
    """What is known at the student's response positions: the input of every score and allocation rule.

    All log-probabilities are normalised over the candidate set. `reference_logp` is None if no rule needs it. Its first
    axis is teachers if they have different references. `initial_logp` is the initial student's, if the target starts
    from it. `speaks` is where each teacher has a say; None: everywhere.
    A callable `score` gets this record and returns ``[K, B, T]``; a callable `allocation` gets this record and the
    calibrated scores (None without a score) and returns weights ``[K, B, T]`` that sum to one over teachers, or are all
    0 at a token, which masks it.
    """

    student_logp: Float[Tensor, "B T C"]
    teacher_logp: Float[Tensor, "K B T C"]
    reference_logp: Float[Tensor, "B T C"] | Float[Tensor, "K B T C"] | None
    candidate_ids: Int[Tensor, "B T C"]
    sampled_ids: Int[Tensor, "B T"]
    mask: Shaped[Tensor, "B T"]
    speaks: Shaped[Tensor, "K B T"] | None = None
    initial_logp: Float[Tensor, "B T C"] | None = None
