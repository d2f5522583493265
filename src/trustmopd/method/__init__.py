"""The paper as tensor functions: torch only, no models. Start with `objective.py`; `axes.py` has the legend of
shapes."""

from trustmopd.method.allocation import (
    among_speakers,
    degenerate_tokens,
    random_weights,
    response_level,
    routed_weights,
    single_weights,
    trust_weights,
    uniform_weights,
)
from trustmopd.method.axes import CandidateState
from trustmopd.method.calibration import ScoreTotals, calibrated_scores
from trustmopd.method.candidates import renormalise, top_candidates
from trustmopd.method.loss import mean_of_response_means, response_means, reverse_kl
from trustmopd.method.objective import SCORES, Objective, objective, trust
from trustmopd.method.rivals import (
    consensus_weights,
    directed_weights,
    entropy_weights,
    expert_align_weights,
    largest_weights,
    novelty_weights,
    spread,
    teaching_agreement,
)
from trustmopd.method.scores import displacement, negative_entropy, teacher_likelihood, teacher_student_kl
from trustmopd.method.target import extrapolated_target, mixed_target, shift_target

__all__ = [
    "SCORES",
    "CandidateState",
    "Objective",
    "ScoreTotals",
    "among_speakers",
    "calibrated_scores",
    "consensus_weights",
    "degenerate_tokens",
    "directed_weights",
    "displacement",
    "entropy_weights",
    "expert_align_weights",
    "extrapolated_target",
    "largest_weights",
    "mean_of_response_means",
    "mixed_target",
    "negative_entropy",
    "novelty_weights",
    "objective",
    "random_weights",
    "renormalise",
    "response_level",
    "response_means",
    "reverse_kl",
    "routed_weights",
    "shift_target",
    "single_weights",
    "spread",
    "teacher_likelihood",
    "teacher_student_kl",
    "teaching_agreement",
    "top_candidates",
    "trust",
    "trust_weights",
    "uniform_weights",
]
