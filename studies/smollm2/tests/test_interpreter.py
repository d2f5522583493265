"""The interpreter gives what Python gives for small functions, and nothing a hostile program asks for."""

import json
import time

import pytest

from studies.smollm2.interpreter import DEPTH, PROGRAM, Refused, call
from trustmopd.evaluation.graders.programs import grade_tests
from trustmopd.evaluation.sandbox.sandbox import check_sandbox

AS_IN_PYTHON = {
    "def f(x):\n    return [n * 2 for n in x if n % 2 == 0][::-1]": [8, 4],
    "def f(x):\n    t = 0\n    for n in x:\n        if n < 0:\n            continue\n        t += n\n    return t": 10,
    "def f(x):\n    return sorted(x, key=lambda n: (-n, n), reverse=False)": [4, 3, 2, 1],
    "def f(x):\n    y = 0\n    while x:\n        y += x.pop()\n        if y > 6:\n            break\n    return y": 7,
    "def f(x):\n    return ', '.join(map(str, x))": "1, 2, 3, 4",
    "def f(x):\n    c = {}\n    for n in x:\n        c[n % 2] = c.get(n % 2, 0) + 1\n    return c": {0: 2, 1: 2},
    "def f(x):\n    a, b = x[:2]\n    return f'{a}-{b}'": "1-2",
    "from typing import List\ndef f(x: List[int]) -> int:\n    '''Sums.'''\n    return sum(n for n in x)": 10,
    "def g(n):\n    return 1 if n < 2 else n * g(n - 1)\ndef f(x):\n    return [g(n) for n in x]": [1, 2, 6, 24],
    "def f(x):\n    return [a + b for a, b in zip(x, x[1:])]": [3, 5, 7],
    "def f(x):\n    return max(x, key=lambda n: -n)": 1,
    "def f(x):\n    return [w.upper() for w in 'a b'.split()] + list(reversed(x))[:1]": ["A", "B", 4],
    "def f(x):\n    return any(n > 3 for n in x) and isinstance(x, list)": True,
    "def f(x):\n    return next((n for n in x if n > 2), None)": 3,
    "def f(x):\n    x[0], x[1] = x[1], x[0]\n    x += [9]\n    return x": [2, 1, 3, 4, 9],
    "def f(x):\n    return {n: n ** 2 for n in x}[3]": 9,
    "if __name__ == '__main__':\n    print(f([1]))\ndef f(x):\n    return -x[-1] // 3": -2,
}


@pytest.mark.parametrize("code", AS_IN_PYTHON)
def test_small_functions_give_what_python_gives(code):
    assert call(code, "f", [[1, 2, 3, 4]]) == AS_IN_PYTHON[code]


def test_what_python_makes_an_iterator_equals_no_list():
    for body in ("map(abs, x)", "reversed(x)", "(n for n in x)", "zip(x, x)", "filter(None, x)"):
        assert call(f"def f(x):\n    return {body}", "f", [[1, 2]]) != [1, 2]


HOSTILE = [
    "import os\ndef f(x):\n    return os.listdir('/')",
    "from os import system\ndef f(x):\n    return 1",
    "def f(x):\n    return __import__('os').getcwd()",
    "def f(x):\n    return eval('1')",
    "def f(x):\n    return exec('1')",
    "def f(x):\n    return open('/etc/passwd').read()",
    "def f(x):\n    return ().__class__.__bases__",
    "def f(x):\n    return f.__globals__",
    "def f(x):\n    return (lambda: 0).__code__",
    "def f(x):\n    return str.__subclasses__()",
    "def f(x):\n    return '{0.__class__}'.format(x)",
    "def f(x):\n    return getattr(x, '__class__')",
    "def f(x):\n    return type(x)",
    "def f(x):\n    return globals()",
    "def f(x):\n    return __builtins__",
    "class A:\n    pass\ndef f(x):\n    return A",
    "@print\ndef f(x):\n    return 1",
    "def f(x):\n    try:\n        return 1\n    except Exception:\n        return 2",
    "async def f(x):\n    return 1",
    "def f(x):\n    yield 1",
    "def f(x):\n    while True:\n        pass",
    "while True:\n    pass",
    "def f(x):\n    for n in x:\n        x.append(n)",
    "def f(x):\n    return f(x)",
    "def f(x):\n    return 9 ** 9 ** 9",
    "def f(x):\n    n = 2\n    while True:\n        n = n * n",
    "def f(x):\n    return 1 << 10 ** 9",
    "def f(x):\n    return 'a' * 10 ** 10",
    "def f(x):\n    return [0] * 10 ** 10",
    "def f(x):\n    return 10 ** 10 * [0]",
    "def f(x):\n    return list(range(10 ** 12))",
    "def f(x):\n    return len(range(10 ** 30))",
    "def f(x):\n    return list(map(list, map(range, [10 ** 9])))",
    "def f(x):\n    return round(5, -10 ** 9)",
    "def f(x):\n    return '%1000000000d' % 5",
    "def f(x):\n    return f'{5:1000000000d}'",
    "def f(x):\n    return 'a'.ljust(10 ** 9)",
    "def f(x):\n    x.append(x)\n    return str(x)",
    "def f(x):\n    for _ in range(60):\n        x = [x, x]\n    return x == [x, x]",
    "def f(x):\n    y = (1,)\n    for _ in range(60):\n        y = (y, y)\n    return {y: 1}",
    # Each list is small when it is put into the next; only then does the innermost grow.
    "def f(x):\n    a = []\n    b = [a] * 900\n    for n in range(900):\n        a.append(b)\n    return str(b)",
    "def f(x):\n    a = []\n    b = [a] * 900\n    for n in range(900):\n        a.append(n)\n    return str(b)",
    "def f(x):\n    return sum([[0] * 1000] * 1000, [])",
    "def f(x):\n    return [[n for n in range(1000)] for m in range(1000)]",
    "def f(x):\n    s = 'ab' * 500\n    return s.replace('', s).replace('', s)",
    "def f(x):\n    return " + "-" * 3500 + "1",
    "def f(x):\n    return " + "[" * 150 + "]" * 150,
    "def f(x):\n    return " + "(" * 1500 + "1" + ")" * 1500,
    "def f(x):\n    return " + "9" * 3000,
    "#" * (PROGRAM + 1),
    "def f(x):\n    return x\x00",
    "f = 3",
    "return 1",
    "break",
    "def g(x):\n    return 1",
]


@pytest.mark.parametrize("code", HOSTILE)
def test_a_hostile_program_gets_nothing_and_costs_little(code):
    began = time.process_time()
    with pytest.raises(Exception) as raised:
        call(code, "f", [[1, 2, 3]])
    assert isinstance(raised.value, (Refused, NameError, TypeError, AttributeError))
    assert time.process_time() - began < 2


def test_recursion_is_allowed_up_to_a_depth():
    code = "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)"
    assert call(code, "f", [DEPTH - 1]) == DEPTH - 1
    with pytest.raises(Refused):
        call(code, "f", [DEPTH])


def test_what_was_printed_goes_nowhere(capsys):
    assert call("print('secret')\ndef f(x):\n    print(x)\n    return 1", "f", [1]) == 1
    assert capsys.readouterr().out == ""


def test_one_call_leaves_nothing_for_the_next():
    code = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)"
    assert [call(code, "f", [1]), call(code, "f", [1])] == [1, 1]


@pytest.mark.parametrize("code", AS_IN_PYTHON)
def test_the_sandbox_agrees(code):
    try:
        check_sandbox()
    except OSError as error:
        pytest.skip(str(error))
    if isinstance(AS_IN_PYTHON[code], dict):
        pytest.skip("JSON has no keys that are numbers")
    grade = grade_tests(code, ["[1, 2, 3, 4]"], [json.dumps(AS_IN_PYTHON[code])], "f")
    assert grade.score == 1.0, grade.details
