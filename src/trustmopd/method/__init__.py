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
from trustmopd.method.objective import EMPHASES, SCORES, TARGETS, Objective, objective, trust
from trustmopd.method.scores import displacement, negative_entropy, teacher_likelihood, teacher_student_kl
from trustmopd.method.target import mixed_target

__all__ = [
    "EMPHASES",
    "SCORES",
    "TARGETS",
    "CandidateState",
    "Objective",
    "ScoreTotals",
    "among_speakers",
    "calibrated_scores",
    "degenerate_tokens",
    "displacement",
    "mean_of_response_means",
    "mixed_target",
    "negative_entropy",
    "objective",
    "random_weights",
    "renormalise",
    "response_level",
    "response_means",
    "reverse_kl",
    "routed_weights",
    "single_weights",
    "teacher_likelihood",
    "teacher_student_kl",
    "top_candidates",
    "trust",
    "trust_weights",
    "uniform_weights",
]
