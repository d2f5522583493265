"""One row for each rule of each part: nothing that is listed is without a function, and no function is unlisted."""

import pytest

from trustmopd import method
from trustmopd.recipe import rules
from trustmopd.training.step.allocation import _RULES
from trustmopd.training.step.target import _TARGETS

pytestmark = pytest.mark.unit


def test_every_rule_of_the_tables_has_a_function():
    assert list(_RULES) == list(rules.RULES)
    assert list(method.SCORES) == list(rules.SCORES)
    assert list(_TARGETS) == list(rules.TARGETS)
