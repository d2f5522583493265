"""Mathematics: the last boxed answer, compared by math-verify in a process that can be killed."""

import json
import re
import select
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

from trustmopd.evaluation.benchmark import Grade, Row, Unavailable

#: Seconds for one comparison: a short string can keep SymPy busy for ever. With the start of a new process, which the
#: next answer may have to wait for, it stays below five.
TIME_LIMIT = 2.0
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."

_TOKEN = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|\\.|\{|\}", re.DOTALL)
_threads = threading.local()


def grade_answer(row: Row, response: str) -> Grade:
    """Passed if math-verify finds the last box equal to `row["answer"]`. Without a box there is no answer."""
    given = last_boxed(response)
    verdict = given is not None and equal(str(row["answer"]), given)
    return Grade(float(verdict is True), {"extracted": given, **({"undecided": True} if verdict is None else {})})


def last_boxed(text: str) -> str | None:
    """What the last whole \\boxed{…} that is not empty holds, braces matched; of nested boxes, the innermost."""
    opened: list[int | None] = []
    begin = end = 0
    for token in _TOKEN.finditer(text):
        symbol = token[0]
        if symbol == "{":
            opened.append(None)
        elif symbol == "}":
            start = opened.pop() if opened else None
            # Otherwise the last box lies within this one, or this one is empty, as in the question.
            if start is not None and start > begin and text[start : token.start()].strip():
                begin, end = start, token.start()
        elif symbol.endswith("{") and len(symbol) > 2:
            opened.append(token.end())
    return text[begin:end].strip() or None


def equal(reference: str, answer: str) -> bool | None:
    """math-verify's verdict; None if it took too long."""
    if not hasattr(_threads, "judge"):
        _threads.judge = _Judge()
    return _threads.judge.ask(reference, answer)


def ready() -> None:
    if find_spec("math_verify") is None:
        raise Unavailable("grading mathematics needs math-verify. Install it: pip install 'trustmopd[eval]'.")


class _Judge:
    """One math-verify process, which answers each line with a line. If it is too slow it is killed, and another is
    started at once. One for each thread, so that an answer belongs to the last question."""

    def __init__(self) -> None:
        ready()
        self._start()

    def ask(self, reference: str, answer: str) -> bool | None:
        self._await_ready()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([reference, answer[:2000]]).encode() + b"\n")
            self._process.stdin.flush()
            verdict = self._read(TIME_LIMIT)
        except BrokenPipeError:
            verdict = None
        if verdict is None:
            self._stop()
            self._start()
            return None
        return verdict == b"true"

    def _start(self) -> None:
        script = Path(__file__).with_name("mathematics_process.py")
        self._is_ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def _await_ready(self) -> None:
        if not self._is_ready and self._read(120) != b"ready":  # importing SymPy takes a second, or many where busy
            self._stop()
            raise Unavailable("math-verify does not start. Try: python -c 'import math_verify'.")
        self._is_ready = True

    def _read(self, seconds: float) -> bytes | None:
        assert self._process.stdout is not None
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        return self._process.stdout.readline().strip() or None if poll.poll(1000 * seconds) else None

    def _stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self._stop()
