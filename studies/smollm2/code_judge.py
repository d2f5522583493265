"""Whether the function in a response is right: run in the sandbox where it works, else followed by the interpreter."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from studies.smollm2.interpreter import Program
from trustmopd.evaluation.benchmark import Unavailable
from trustmopd.evaluation.graders.programs import grade_asserts
from trustmopd.evaluation.sandbox.sandbox import check_sandbox

#: For all tests of a function: right ones take milliseconds.
TIME_LIMIT = 2.0


@cache
def judge() -> str:
    """`sandbox` or `interpreter`. They agree on every function that this study makes; of a model's functions, the
    interpreter refuses those that use more of Python than it knows."""
    try:
        check_sandbox()
    except Unavailable:
        return "interpreter"
    return "sandbox"


def check(arguments: dict[str, Any], response: str) -> bool:
    """Whether the last code block that defines the function, or the response where it has no block, passes every
    test."""
    name, tests = arguments["function"], arguments["tests"]
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", response, re.DOTALL) or [response]
    code = next((block for block in reversed(blocks) if f"def {name}(" in block), "")
    return bool(code) and JUDGES[judge()](code, name, tests)


def in_sandbox(code: str, function: str, tests: Sequence[Sequence[Any]]) -> bool:
    asserts = "\n".join(f"assert {function}({given!r}) == {expected!r}" for given, expected in tests)
    return grade_asserts({"tests": asserts}, code, TIME_LIMIT).score == 1.0


def interpreted(code: str, function: str, tests: Sequence[Sequence[Any]]) -> bool:
    try:
        program = Program(code)
        return all(bool(program.call(function, [list(given)]) == expected) for given, expected in tests)
    except Exception:  # whatever the program raises is the program's
        return False


JUDGES: Mapping[str, Callable[[str, str, Sequence[Sequence[Any]]], bool]] = {
    "sandbox": in_sandbox,
    "interpreter": interpreted,
}
