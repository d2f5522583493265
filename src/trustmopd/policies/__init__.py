"""The frozen policies of a run: how they are specified, checked, loaded and asked."""

from trustmopd.policies.answers import Answers, Rollouts
from trustmopd.policies.fingerprint import fingerprint, fingerprint_tokenizer
from trustmopd.policies.graph import PolicyGraph, resolve
from trustmopd.policies.load import build_pool
from trustmopd.policies.pool import TeacherPool
from trustmopd.policies.preflight.model_facts import load_tokenizer
from trustmopd.policies.teacher import REFERENCE, Teacher, as_teachers

__all__ = [
    "REFERENCE",
    "Answers",
    "PolicyGraph",
    "Rollouts",
    "Teacher",
    "TeacherPool",
    "as_teachers",
    "build_pool",
    "fingerprint",
    "fingerprint_tokenizer",
    "load_tokenizer",
    "resolve",
]
