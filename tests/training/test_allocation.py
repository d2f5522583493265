"""One row a rule, one row a score: nothing that is listed is without a function, and no function is unlisted."""

from trustmopd import method
from trustmopd.recipe import rules
from trustmopd.training.step.allocation import _RULES


def test_every_rule_and_score_of_the_table_has_a_function():
    assert list(_RULES) == list(rules.RULES)
    assert list(method.SCORES) == list(rules.SCORES)
