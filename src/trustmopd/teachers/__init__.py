"""The frozen policies of a run: how they are specified, checked, loaded and asked."""

from trustmopd.teachers.answers import Answer, Answers, Rollouts
from trustmopd.teachers.facts import load_tokenizer
from trustmopd.teachers.fingerprint import fingerprint, fingerprint_tokenizer
from trustmopd.teachers.load import build_pool
from trustmopd.teachers.pool import Member, TeacherPool
from trustmopd.teachers.preflight import preflight
from trustmopd.teachers.spec import REFERENCE, Teacher, as_teachers

__all__ = [
    "REFERENCE",
    "Answer",
    "Answers",
    "Member",
    "Rollouts",
    "Teacher",
    "TeacherPool",
    "as_teachers",
    "build_pool",
    "fingerprint",
    "fingerprint_tokenizer",
    "load_tokenizer",
    "preflight",
]
