"""Code: does a generated program print, return or assert what it should? Expected values stay outside the sandbox."""

import ast
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from functools import cache
from json import loads
from pathlib import Path
from typing import Any

from trustmopd.evaluation.benchmark import Grade, Row
from trustmopd.evaluation.sandbox import typed_values
from trustmopd.evaluation.sandbox.sandbox import run_python
from trustmopd.evaluation.sandbox.typed_values import decode

#: LiveCodeBench's limits for one test. A whole program of asserts gets longer: MBPP has a solution that takes 9 s.
TIME_LIMIT, ASSERTS_TIME_LIMIT, MEMORY_MB = 6.0, 20.0, 4096
_MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json"),
)
#: What LiveCodeBench imports before every solution: many solutions need it.
PRELUDE = "".join(
    [
        *(f"from {module} import *\n" for module in (*_MODULES, "builtins", "typing")),
        *(f"import {module}\n" for module in _MODULES),
        "sys.setrecursionlimit(50000)\n",
    ]
)


def last_code_block(response: str) -> str | None:
    """The text between the last two lines with ```, as LiveCodeBench reads it; None if there are no two."""
    lines = response.split("\n")
    fences = [i for i, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else None


def grade_programs(row: Row, response: str) -> Grade:
    """Passed if every test of `row["input_output"]` does: `inputs` and `outputs`, and `fn_name` where a function is
    called instead of a program run. Grading stops at the first failure."""
    tests = row["input_output"]
    return grade_tests(last_code_block(response), tests["inputs"], tests["outputs"], tests.get("fn_name"))


def grade_tests(code: str | None, inputs: Sequence[str], outputs: Sequence[str], function: str | None) -> Grade:
    if not inputs or len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs and {len(outputs)} outputs: the problem cannot be graded")
    if not code:
        return Grade(0.0, {"extracted": code, "verdict": "no code"})
    program = function_program(code, function) if function else stdin_program(code)
    same = same_value if function else same_output
    for number, (given, expected) in enumerate(zip(inputs, outputs, strict=True)):
        result = run_python(program, given, timeout=TIME_LIMIT, memory_mb=MEMORY_MB)
        passed = result.status == "ok" and same(result.stdout, expected)
        if not passed:
            verdict = "wrong answer" if result.status == "ok" else result.status
            about = {"test": number, "tests": len(inputs), "stderr": result.stderr[-300:]}
            return Grade(0.0, {"extracted": code, "verdict": verdict, **about})
    return Grade(1.0, {"extracted": code, "verdict": "passed", "tests": len(inputs)})


def grade_asserts(row: Row, response: str, time_limit: float = ASSERTS_TIME_LIMIT) -> Grade:
    """Passed if `row["tests"]` (asserts, or a test program) runs without error after the response's last code block, or
    after the whole response if it has none. `row["setup"]`, if any, runs before both."""
    code = last_code_block(response)
    code = response if code is None else code
    tests, expected = take_expected_values(row["tests"])
    setup = f"{row['setup']}\n" if row.get("setup") else ""
    program = assert_program(setup + code, tests)
    result = run_python(program, timeout=time_limit, memory_mb=MEMORY_MB)
    verdict = "passed" if _all_came(result.stdout, expected) else "wrong answer"
    if result.status != "ok":
        # An assert that was left in place fails as any error does.
        wrong = result.status == "error" and "AssertionError" in result.stderr[-300:]
        verdict = "wrong answer" if wrong else result.status
    about = {} if verdict == "passed" else {"stderr": _lines_of_code(result.stderr, setup.count("\n"))[-300:]}
    return Grade(float(verdict == "passed"), {"extracted": code, "verdict": verdict, **about})


def _lines_of_code(traceback: str, setup: int) -> str:
    """Line numbers as in the response's own code, which runs after `setup` lines."""

    def renumbered(place: re.Match[str]) -> str:
        line = int(place[1])
        return f'File "setup.py", line {line}' if line <= setup else f'File "solution.py", line {line - setup}'

    return re.sub(r'File "solution\.py", line (\d{1,9})', renumbered, traceback)


def stdin_program(code: str) -> str:
    """A program that reads its input; it may end by sys.exit."""
    return f"""{PRELUDE}
try:
    exec(compile({code!r}, "solution.py", "exec"), globals())
except SystemExit:
    pass
"""


def function_program(code: str, name: str) -> str:
    """Calls `name` (of class Solution, if there is one) with the JSON lines of its input, and sends the value."""
    return f"""{_channel()}
_space = {{"__name__": "solution"}}
exec({PRELUDE!r}, _space)
exec(compile({code!r}, "solution.py", "exec"), _space)
_target = _space["Solution"]() if {"class Solution" in code} else None
_function = getattr(_target, {name!r}) if _target is not None else _space[{name!r}]
_arguments = [json.loads(line) for line in _given.split("\\n")]
_send(encode(_function(*_arguments)))
"""


def assert_program(code: str, tests: str) -> str:
    return f"""{_channel()}
_space = {{"__name__": "solution", "_record": lambda number, value: _send(f"{{number}} {{encode(value)}}")}}
exec(compile({code!r}, "solution.py", "exec"), _space)
exec(compile({tests!r}, "tests.py", "exec"), _space)
_send("end")
"""


@cache
def _channel() -> str:
    """What the solution prints goes to stderr, so that stdout carries values alone."""
    values = Path(typed_values.__file__).read_text(encoding="utf-8")
    return f"""{values}
import os, sys
_given = sys.stdin.read()
_out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
def _send(line):
    _out.write(line + "\\n")
    _out.flush()
"""


def same_output(printed: str, expected: str) -> bool:
    """LiveCodeBench's rule: the same number of lines, each equal but for spaces around it, or equal number by
    number."""
    ours, theirs = ([line.strip() for line in text.strip().split("\n")] for text in (printed, expected))
    return len(ours) == len(theirs) and all(
        our == their or ((numbers := _decimals(our)) is not None and numbers == _decimals(their))
        for our, their in zip(ours, theirs, strict=True)
    )


def same_value(sent: str, expected: str) -> bool:
    """LiveCodeBench's rule: Python's ==, but a tuple passes for the list that JSON has instead."""
    if not sent.strip():  # the program ended before the function returned
        return False
    value = decode(sent)
    return bool((list(value) if isinstance(value, tuple) else value) == loads(expected))


def take_expected_values(tests: str) -> tuple[str, list[Any]]:
    """`assert f(2) == 4` becomes `_record(0, f(2))`, and the 4 is kept outside, out of reach of the program's
    frames and of an `__eq__` of its own. Asserts of another form stay as they are."""
    taker = _Taker()
    tree = taker.visit(ast.parse(tests))
    return ast.unparse(ast.fix_missing_locations(tree)), taker.expected


class _Taker(ast.NodeTransformer):
    def __init__(self) -> None:
        self.expected: list[Any] = []

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        compared = node.test
        if not (isinstance(compared, ast.Compare) and len(compared.ops) == 1 and isinstance(compared.ops[0], ast.Eq)):
            return node
        try:
            self.expected.append(ast.literal_eval(compared.comparators[0]))
        except ValueError:
            return node
        number = ast.Constant(len(self.expected) - 1)
        return ast.Expr(ast.Call(ast.Name("_record", ast.Load()), [number, compared.left], []))


def _all_came(sent: str, expected: Sequence[Any]) -> bool:
    """Every expected value came at least once, no other did, and the tests ran to their end."""
    *records, end = sent.removesuffix("\n").split("\n")
    met = set()
    for record in records:
        number, _, value = record.partition(" ")
        # A negative number would count from the end: a program could then send one value under two numbers.
        if not 0 <= int(number) < len(expected) or decode(value) != expected[int(number)]:
            return False
        met.add(int(number))
    return end == "end" and len(met) == len(expected)


def _decimals(line: str) -> list[Decimal] | None:
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None
