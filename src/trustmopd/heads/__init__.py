"""Hidden states → candidate logits, never a [T, V] tensor. `reference.py` defines the result; `chunked.py` and
`fused.py` compute it in little memory."""

from trustmopd.heads.dispatch import candidate_logits, top_candidates_of, trust_objective, use_implementation
from trustmopd.heads.head import Head

__all__ = ["Head", "candidate_logits", "top_candidates_of", "trust_objective", "use_implementation"]
