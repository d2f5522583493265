"""Generated code: right, wrong, slow, crashing, silent, and cheating."""

import base64
import json
import pickle
import random
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bubblewrap import needs_sandbox
from contest_solutions import SOLUTIONS
from shared_data import real

from trustmopd.evaluation import Grade, get_benchmark
from trustmopd.evaluation.benchmarks.livecodebench import unpack_tests
from trustmopd.evaluation.graders.programs import (
    grade_asserts,
    grade_programs,
    last_code_block,
    same_output,
    take_expected_values,
)
from trustmopd.evaluation.sandbox.typed_values import decode, encode

DOUBLE = {"input_output": {"inputs": ["2\n", "5\n", "40\n"], "outputs": ["4\n", "10\n", "80\n"]}}
DOUBLE_FUNCTION = {"input_output": {"inputs": ["[1, 2]\n3", "[]\n9"], "outputs": ["[3, 6]", "[]"], "fn_name": "times"}}


def fenced(code: str) -> str:
    return f"Here it is.\n```python\n{code}\n```\nDone."


def verdict(row: dict[str, Any], code: str) -> str:
    grade = grade_programs(row, fenced(code))
    assert grade.score == (grade.details["verdict"] == "passed")
    return grade.details["verdict"]


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(2 * int(input()))", "passed"),
        ("import sys\nfor line in sys.stdin: print(2 * int(line))", "passed"),
        ("print(2 * int(open(0).read()), '   ')\nexit()", "passed"),
        ("if __name__ == '__main__':\n    print(float(2 * int(input())))", "passed"),  # 4.0 is 4, number by number
        ("print(2 * int(input()))\nraise SystemExit(1)", "passed"),  # as in the official harness
        ("print(gcd(0, 2 * int(input())))", "passed"),  # without an import, as in the official harness
        ("print(int(input()) ** 2)", "wrong answer"),  # right on the first test alone
        ("print(2 * int(input()) + 1)", "wrong answer"),
        ("x = input()", "wrong answer"),
        ("print(2 * int(input()), end='\\n\\n1\\n')", "wrong answer"),
        ("print(2 * int(input())); 1 / 0", "error"),
        ("print(", "error"),
        ("while True: pass", "timeout"),
        ("x = bytearray(50 * 2**30)", "memory"),
        ("import os; os.kill(os.getpid(), 9)", "killed"),
        ("while True: print('x' * 10**6)", "output_limit"),
    ],
)
def test_a_program_gets_the_verdict_it_deserves(code: str, expected: str) -> None:
    assert verdict(DOUBLE, code) == expected


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("class Solution:\n    def times(self, xs: List[int], k: int):\n        return [k * x for x in xs]", "passed"),
        ("def times(xs, k):\n    print('noise')\n    return tuple(k * x for x in xs)", "passed"),
        ("def times(xs, k):\n    return [k + x for x in xs]", "wrong answer"),
        ("def times(xs, k):\n    return str([k * x for x in xs])", "wrong answer"),
        ("def other(xs, k):\n    return xs", "error"),
        ("class Yes:\n    __eq__ = lambda self, other: True\ndef times(xs, k): return Yes()", "wrong answer"),
        ("import os\ndef times(xs, k): os._exit(0)", "wrong answer"),
        ("print('[3, 6]')\ndef times(xs, k): raise SystemExit", "wrong answer"),
    ],
)
def test_a_function_gets_the_verdict_it_deserves(code: str, expected: str) -> None:
    grade = grade_programs(DOUBLE_FUNCTION, fenced(code))
    assert (grade.score, grade.details["verdict"]) == (float(expected == "passed"), expected), grade


@needs_sandbox
def test_what_is_expected_cannot_be_read_inside() -> None:
    """Neither in frames, nor in any file, nor in memory that the interpreter can reach."""
    spy = """
import gc, os, sys
seen = [open("/program.py").read(), open("/proc/self/cmdline").read()]
frame = sys._getframe()
while frame:
    seen.append(repr(frame.f_globals) + repr(frame.f_locals))
    frame = frame.f_back
seen += [repr(thing) for thing in gc.get_objects() if isinstance(thing, (list, dict, tuple))][:20000]
for root, folders, files in os.walk("/tmp"):
    seen += [open(os.path.join(root, file), errors="replace").read() for file in files]
wanted = "".join(["SECRET", "VALUE"])  # made last, and never whole in this source, so that it is not itself found
answer = wanted if any(wanted in each for each in seen) else f"not in {len(seen)} places"
"""
    stdin = {"input_output": {"inputs": ["1"], "outputs": ["SECRETVALUE"]}}
    assert verdict(stdin, spy + "print(answer)") == "wrong answer"
    code = spy + "def f(x): return answer"
    function = {"input_output": {"inputs": ["1"], "outputs": ['"SECRETVALUE"'], "fn_name": "f"}}
    assert verdict(function, code) == "wrong answer"
    assert grade_asserts({"tests": "assert f(1) == 'SECRETVALUE'"}, fenced(code)).score == 0
    # The spy sees well: what is inside, such as the tests' inputs, it finds.
    assert grade_asserts({"tests": "assert f('SECRETVALUE') == 'SECRETVALUE'"}, fenced(code)).score == 1


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f(x): return (x, [x])", "passed"),
        ("def f(x): return [x, [x]]", "wrong answer"),  # Python's == tells lists from tuples
        ("def f(x): return (x, [x + 1])", "wrong answer"),
        ("def f(x): raise ValueError", "error"),
        ("def f(x):\n    while True: pass", "timeout"),
        ("import sys; sys.exit(0)", "wrong answer"),
        ("import os; os._exit(0)", "wrong answer"),
        ("class Yes:\n    __eq__ = lambda self, other: True\ndef f(x): return Yes()", "wrong answer"),
        ("def f(x: return", "error"),
        ("import sys; sys.exit(97)", "error"),
    ],
)
def test_asserts_give_the_verdict_that_a_response_deserves(
    code: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trustmopd.evaluation.graders.programs.ASSERTS_TIME_LIMIT", 3.0)
    row = {"tests": "assert f(1) == (1, [1])\nassert callable(f)"}
    grade = grade_asserts(row, fenced(code))
    assert (grade.score, grade.details["verdict"]) == (float(expected == "passed"), expected), grade


@needs_sandbox
def test_tracebacks_count_lines_as_the_response_does() -> None:
    code = "def f(x):\n    y = x\n    return y.absent"
    for row in ({"tests": "assert f(1) == 1"}, {"tests": "assert f(1) == 1", "setup": "import re\nimport os\n"}):
        assert 'File "solution.py", line 3, in f' in grade_asserts(row, fenced(code)).details["stderr"]
    broken = {"tests": "assert f(1)", "setup": "a = 1\nb = absent"}
    assert 'File "setup.py", line 2' in grade_asserts(broken, fenced(code)).details["stderr"]
    assert 'File "solution.py", line 2' in grade_programs(DOUBLE, fenced("x = 1\n1 / 0")).details["stderr"]
    assert 'File "solution.py", line 2' in grade_programs(DOUBLE_FUNCTION, fenced("x = 1\n1 / 0")).details["stderr"]


@needs_sandbox
def test_a_body_that_completes_a_function_passes_behind_reasoning_too() -> None:
    humaneval = get_benchmark("humaneval")
    source = {
        "task_id": "a",
        "prompt": "def f(x):\n",
        "test": "def check(c):\n    assert c(2) == 4",
        "entry_point": "f",
    }
    row = humaneval.row(source, 0)
    for response in ("    return 2 * x\n", "<think>double</think>\n\n    return 2 * x\n"):
        assert humaneval.grade(row, response).score == 1
    assert humaneval.grade(row, "<think>double</think>\n    return 3 * x").score == 0


@needs_sandbox
@pytest.mark.parametrize("records", ["1 9|-1 9", "0 4|1 9|2 0", "1 9|1 9", "x 4|1 9", "0 4|1 ["])
def test_a_program_that_sends_records_itself_must_send_each_right_one(records: str) -> None:
    forge = f"""
import os, sys
for line in {records.split("|")!r} + ["end"]:
    sys._getframe(1).f_globals["_send"](line)
os._exit(0)
"""
    get = get_benchmark("mbpp")
    row = {"tests": "assert f(2) == 4\nassert f(3) == 9"}
    assert get.grade(row, fenced(forge)).score == 0
    assert get.grade(row, fenced(forge.replace(repr(records.split("|")), "['0 4', '1 9']"))).score == 1


def test_expected_values_are_taken_out_of_the_tests() -> None:
    tests = """
def check(g):
    for x in (1, 2):
        assert g(x) == [7]
    assert g(3) > 0
assert f(1) == {'a': 2}, 'no'
"""
    kept, expected = take_expected_values(tests)
    assert expected == [[7], {"a": 2}]
    assert "7" not in kept and "'a'" not in kept and "assert g(3) > 0" in kept


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -(10**30), 2.5, float("inf"), "é\n", 1j, b"\x00", [], {}, (), set(), frozenset({1})),
        {"a": [1, (2, {3})], 4: None, (5, 6): "x"},
        [[1, 2], (1, 2), {"tuple": [1]}, {"object": 1}],
    ],
)
def test_values_survive_the_way_out(value: object) -> None:
    again = decode(encode(value))
    assert again == value and (isinstance(again, frozenset) or type(again) is type(value))


def test_an_unknown_type_equals_nothing() -> None:
    assert decode(encode(object())) != decode(encode(object()))


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        ("  1 2  \n3\n\n", "1 2\n3\n", True),
        ("1.0 2\n3", "1 2.00\n3.000", True),
        ("1\n2", "1 2", False),
        ("1  2", "1 2", True),
        ("a  b", "a b", False),
        ("50000000000000000", "50000000000000001", False),
        ("0.1", "0.10000000001", False),
        ("yes", "YES", False),
        ("", "", True),
        ("\n1", "1", True),
        ("1\n\n2", "1\n2", False),
    ],
)
def test_outputs_are_compared_by_livecodebenchs_rule(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("```python\na\n```", "a"),
        ("```\nfirst\n```\ntext\n```py\nlast\nline\n```\n", "last\nline"),
        ("no code", None),
        ("```python\ncut short", None),
        ("```python\n```", ""),
    ],
)
def test_the_last_code_block_counts(response: str, code: str | None) -> None:
    assert last_code_block(response) == code


def packed(thing: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(thing))).decode()


def test_private_tests_are_unpacked_and_a_pickle_that_calls_is_refused(tmp_path: Any) -> None:
    tests = [{"input": "1", "output": "2", "testtype": "stdin"}]
    assert unpack_tests(packed(json.dumps(tests))) == tests
    assert unpack_tests(json.dumps(tests)) == tests

    class Call:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "made"), "w"))

    with pytest.raises(pickle.UnpicklingError, match="text"):
        unpack_tests(packed(Call()))
    assert not (tmp_path / "made").exists()


def lcb_row(function: str | None) -> dict[str, Any]:
    cases = [("2", "4"), ("[1]", "[1, 1]")]
    tests = [{"input": i, "output": o, "testtype": "functional" if function else "stdin"} for i, o in cases]
    return {
        "question_id": "q1",
        "question_content": "Double it.",
        "starter_code": "class Solution:\n    def double(self, x):\n        " if function else "",
        "public_test_cases": json.dumps(tests[:1]),
        "private_test_cases": packed(json.dumps(tests[1:])),
        "metadata": json.dumps({"func_name": function} if function else {}),
    }


@needs_sandbox
def test_livecodebench_asks_and_grades_both_kinds(tmp_path: Any) -> None:
    path = tmp_path / "test6.jsonl"
    path.write_text("\n".join(json.dumps({**lcb_row(f), "question_id": str(f)}) for f in (None, "double")))
    lcb = get_benchmark("lcb_v6")
    stdin, function = lcb.load(path)
    assert (lcb.samples, lcb.domain, lcb.hub, lcb.config) == (5, "code", "lighteval/code_generation_lite", "v6")
    assert [message["role"] for message in lcb.prompt(stdin)] == ["system", "user"]
    assert "# YOUR CODE HERE" in stdin["prompt"] and "class Solution" in function["prompt"]
    program = "x = eval(input())\nprint(2 * x)"
    assert lcb.grade(stdin, fenced(program)).score == 1
    assert lcb.grade(stdin, fenced("print(4)")).details["test"] == 1  # the private one
    method = "class Solution:\n    def double(self, x):\n        return x * 2"
    assert lcb.grade(function, fenced(method)).score == 1
    assert lcb.grade(function, method).details["verdict"] == "no code"  # no fence, no code: the official rule
    broken = {**stdin, "private_test_cases": "%%%"}
    assert "error" in lcb.grade(broken, fenced(program)).details


def one_line_changed(code: str, draw: random.Random) -> str:
    """The program with one of its operators, comparisons, numbers or returned values changed."""
    place = draw.choice(list(re.finditer(r"return | [-+*] | [<>=]=? |\b\d+\b", code)))
    swaps = {"return ": "return 0, ", " + ": " - ", " < ": " > ", " == ": " != ", " = ": " = 1, "}
    change = str(int(place[0]) + 1) if place[0].isdigit() else swaps.get(place[0], " + ")
    return code[: place.start()] + change + code[place.end() :]


def grade_all(name: str, rows: list[Any], codes: list[str]) -> list[Grade]:
    benchmark = get_benchmark(name)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda pair: benchmark.grade(pair[0], fenced(pair[1])), zip(rows, codes, strict=True)))


@needs_sandbox
@pytest.mark.parametrize(
    ("name", "path", "solution"),
    [("humaneval", "humaneval/HumanEval.jsonl.gz", "canonical_solution"), ("mbpp", "mbpp/sanitized-mbpp.json", "code")],
)
def test_canonical_solutions_pass_and_with_one_line_changed_fail(name: str, path: str, solution: str) -> None:
    rows = get_benchmark(name).load(real(path))[::3]
    passed = grade_all(name, rows, [row[solution] for row in rows])
    assert [(row["id"], grade.details) for row, grade in zip(rows, passed, strict=True) if not grade.score] == []
    draw = random.Random(0)
    changed = grade_all(name, rows, [one_line_changed(row[solution], draw) for row in rows])
    assert sum(grade.score for grade in changed) / len(rows) < 0.2  # some changes do not matter, or no test minds


@needs_sandbox
@pytest.mark.parametrize("number", range(5))
def test_contest_problems_are_solved_by_solutions_and_by_nothing_else(number: int) -> None:
    problem = json.loads(real("nemo_gym/code_gen_example.jsonl").read_text().splitlines()[number])
    tests = problem["verifier_metadata"]["unit_tests"]
    pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
    if number == 2:  # some of its expected outputs have lost their line breaks, which the comparison minds
        pairs = [(i, o) for i, o in pairs if len(o.strip().split("\n")) == int(i.split("\n")[0])]
    assert len(pairs) > 0
    row = {"input_output": {"inputs": [i for i, _ in pairs[:25]], "outputs": [o for _, o in pairs[:25]]}}
    grade = grade_programs(row, fenced(SOLUTIONS[number]))
    assert grade.score == 1, grade.details
    draw = random.Random(0)
    changed = [grade_programs(row, fenced(one_line_changed(SOLUTIONS[number], draw))).score for _ in range(4)]
    assert sum(changed) <= 2  # a change may do nothing, or meet no test
