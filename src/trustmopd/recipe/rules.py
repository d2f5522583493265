"""The allocation rules and scores by name: a row each, read by everything that lists, prints or checks them. No torch.

A new rule is a row here, a function of its name in `training/step/allocation.py`, and its test; a new score is a row
here, a function in `method/objective.SCORES`, and its test.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """`title` names it in tables, `phrase` says in a model card what the student is pulled towards; both may name the
    one `{teacher}` of a rule that has one. `scored` rules look at scores."""

    name: str
    title: str
    phrase: str
    scored: bool = False


@dataclass(frozen=True)
class Score:
    """`compares` candidates: on a single one it is always 0."""

    name: str
    title: str
    needs_reference: bool = False
    compares: bool = True


RULES = {
    rule.name: rule
    for rule in (
        Rule("trust", "trust", "towards the geometric mean of its teachers, each weighted {how}", scored=True),
        Rule("uniform", "uniform", "towards the geometric mean of its teachers, with equal weights"),
        Rule("random", "random", "towards the geometric mean of its teachers, with random weights"),
        Rule("single", "single {teacher}", "towards `{teacher}` alone"),
        Rule("routed", "routed", "towards the teacher that the prompt's label names"),
    )
}
SCORES = {
    score.name: score
    for score in (
        Score("displacement", "displacement", needs_reference=True),
        Score("likelihood", "likelihood", compares=False),
        Score("negative_entropy", "negative entropy"),
        Score("teacher_student_kl", "teacher–student KL"),
    )
}
#: The paper's own.
TRUST, DISPLACEMENT = RULES["trust"].name, SCORES["displacement"].name
SCORED = tuple(rule.name for rule in RULES.values() if rule.scored)
UNSCORED = tuple(rule.name for rule in RULES.values() if not rule.scored)
