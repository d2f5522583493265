"""Sandbox and interpreter give one verdict on the functions of the study, right and wrong."""

import random
from itertools import pairwise

import pytest

from studies.smollm2 import code_judge, list_functions
from studies.smollm2.tasks import passes, verdicts
from trustmopd.evaluation.benchmark import Unavailable
from trustmopd.evaluation.graders.programs import grade_asserts
from trustmopd.evaluation.sandbox.sandbox import check_sandbox


@pytest.fixture(scope="module")
def sandbox():
    try:
        check_sandbox()
    except OSError as error:
        pytest.skip(str(error))


def no_bubblewrap():
    raise Unavailable("there is no bwrap here")


def source(task):
    return task.solution.removeprefix("```python\n").removesuffix("\n```")


def asked_of(task):
    return task.checks[0].arguments["tests"]


def test_every_solution_passes_in_both(sandbox):
    tasks = list_functions.tasks(False, 250, random.Random(3)) + list_functions.tasks(True, 250, random.Random(3))
    assert all(code_judge.interpreted(source(task), "solve", asked_of(task)) for task in tasks)
    # All in one program, since each call of the sandbox costs 50 ms.
    code = "\n".join(source(task).replace("solve(", f"solve_{number}(") for number, task in enumerate(tasks))
    asserts = [
        f"assert solve_{number}({given!r}) == {expected!r}"
        for number, task in enumerate(tasks)
        for given, expected in asked_of(task)
    ]
    grade = grade_asserts({"tests": "\n".join(asserts)}, code)
    assert grade.score == 1.0, grade.details


@pytest.mark.parametrize(
    "code",
    [
        "def solve(numbers):\n    return undefined",
        "def solve(numbers):\n    while True:\n        pass",
        "def solve():\n    return 1",
        "def solve(numbers)\n    return 1",
        "def solve(numbers):\n    return tuple(numbers)",
        "def solve(numbers):\n    return map(abs, numbers)",
    ],
)
def test_what_is_wrong_passes_in_neither(sandbox, code):
    tests = [[[1, 2], [1, 2]]]
    assert not code_judge.in_sandbox(code, "solve", tests)
    assert not code_judge.interpreted(code, "solve", tests)


def test_another_functions_solution_gets_one_verdict(sandbox):
    for task, other in pairwise(list_functions.tasks(False, 12, random.Random(5))):
        found = {judge(source(other), "solve", asked_of(task)) for judge in code_judge.JUDGES.values()}
        assert found == {False}


@pytest.mark.parametrize("works", [True, False])
def test_the_sandbox_is_used_where_it_works(sandbox, works, monkeypatch):
    if not works:
        monkeypatch.setattr("trustmopd.evaluation.sandbox.sandbox._probed", no_bubblewrap)
    code_judge.judge.cache_clear()
    try:
        assert code_judge.judge() == ("sandbox" if works else "interpreter")
        task = list_functions.tasks(False, 1, random.Random(0))[0]
        imports = "```python\nimport math\n" + source(task) + "\n```"
        assert verdicts([task, task], [task.solution, "no code"]) == [True, False]
        assert passes(task, imports) is works  # the interpreter knows no imports: it tells which of the two it was
    finally:
        code_judge.judge.cache_clear()
