"""Mathematics: the last boxed answer, compared by math-verify in a process that can be killed."""

import json
import re
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

from trustmopd.evaluation.benchmark import Grade, Unavailable
from trustmopd.evaluation.rows import Row

#: Seconds for one comparison: SymPy can be sent round in circles by a short string. With the start of a new process,
#: which the next answer may have to wait for, it stays below five.
TIME_LIMIT = 2.0
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."

_TOKEN = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|\\.|\{|\}", re.DOTALL)
_STATEMENT = re.compile(r"\banswer\b[*\s]*(?:is|:|=)[*\s:=]*([^\n]{1,200})", re.IGNORECASE)
_NUMBER = re.compile(r"(?:(?<!\d)[-−])?\d(?:[\d,]*\d)?(?:\.\d+)?(?:/\d+)?")
_WITH_UNIT = re.compile(r"([-−]?[\d.,/]*\d)\s+([A-Za-z][A-Za-z ]*)\.?")  # 12 apples; math-verify multiplies the letters
#: Words after a number that are no unit: with them the value is another.
_FACTORS = {"pi", "squared", "cubed", "factorial"} | {
    word + ending for word in ("dozen", "hundred", "thousand", "million", "billion", "trillion") for ending in ("", "s")
}
_threads = threading.local()


def grade_answer(row: Row, response: str) -> Grade:
    """Passed if the last box equals `row["answer"]`. Without a box, an explicit "the answer is …" counts."""
    return _grade(row, last_boxed(response) or _statement(response))


def grade_number(row: Row, response: str) -> Grade:
    """As `grade_answer`, but without either the last number counts, as is the custom for word problems. What stands
    before #### in the reference is working."""
    numbers = _NUMBER.findall(response)
    given = last_boxed(response) or _statement(response) or (numbers[-1] if numbers else None)
    return _grade({"answer": str(row["answer"]).rpartition("####")[2]}, given)


def last_boxed(text: str) -> str | None:
    """What the last whole \\boxed{…} holds, braces matched; of nested boxes, the innermost."""
    opened: list[int | None] = []
    found = None
    for token in _TOKEN.finditer(text):
        symbol = token[0]
        if symbol == "{":
            opened.append(None)
        elif symbol == "}":
            start = opened.pop() if opened else None
            if start is not None:
                found = text[start : token.start()]
        elif symbol.endswith("{") and len(symbol) > 2:
            opened.append(token.end())
    if found is None:
        return None
    return last_boxed(found) or found.strip() or None


def equal(reference: str, answer: str) -> bool | None:
    """Whether two answers are the same; None if that could not be decided in time."""
    reference, answer = (re.sub(r"(?<=\d)\\,(?=\d)", "", text) for text in (reference, answer))  # 1\,000
    plain = _plain(reference), _plain(answer)
    if plain[0] is not None and plain[1] is not None:
        return plain[0] == plain[1]
    if not hasattr(_threads, "judge"):
        _threads.judge = _Judge()
    return _threads.judge.ask(reference, answer)


def ready() -> None:
    if find_spec("math_verify") is None:
        raise Unavailable("grading mathematics needs math-verify. Install it: pip install 'trustmopd[eval]'.")


def _grade(row: Row, given: str | None) -> Grade:
    if given is None:
        return Grade(0.0, {"extracted": None})
    verdict = equal(str(row["answer"]), given)
    return Grade(float(verdict is True), {"extracted": given, **({"undecided": True} if verdict is None else {})})


def _statement(text: str) -> str | None:
    """What the last "answer is …" says: the number it begins with ("70, because …"), or all of the line."""
    statements = _STATEMENT.findall(text)
    if not statements:
        return None
    said = re.sub(r"\\[()]", "", statements[-1]).strip(" *$.")
    number = _NUMBER.match(said)
    rest = said[number.end() :] if number else ""
    if not number or not re.match(r"[\s.,;:!?*$)]|$", rest):
        return said or None
    word = re.match(r"\s+([A-Za-z]+)\b", rest)
    return said if word and word[1] not in ("a", "I") and _changes_value([word[1]]) else number[0]


def _without_unit(text: str) -> str:
    """12 of "12 apples"; "12 x", "12 million" and whatever else is no number with its unit stay as they are."""
    found = _WITH_UNIT.fullmatch(text)
    return found[1] if found and not _changes_value(found[2].split()) else text


def _changes_value(words: Sequence[str]) -> bool:
    return len(words[0]) == 1 or any(word.lower() in _FACTORS for word in words)


def _plain(text: str) -> Fraction | None:
    """The value of text that is a number and nothing else. Leading zeros are of no account, 1,070 is 1070."""
    text = text.strip().strip("$").strip().replace("−", "-").removeprefix("+")
    text = _without_unit(text)
    if not re.fullmatch(r"-?(\d{1,3}(,\d{3})+|\d{1,40})(\.\d{0,40})?", text):
        return None
    return Fraction(text.replace(",", "").removesuffix("."))


class _Judge:
    """One math-verify process: asked a line, it answers a line. Too slow, it is killed, and another is started at
    once, to be there when it is needed. One for each thread, because an answer belongs to the last question."""

    def __init__(self) -> None:
        ready()
        self._start()

    def ask(self, reference: str, answer: str) -> bool | None:
        self._await_ready()
        assert self._process.stdin is not None
        answer = _without_unit(answer.strip())
        try:
            self._process.stdin.write(json.dumps([reference.strip(), answer[:2000]]).encode() + b"\n")
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
        script = Path(__file__).with_name("mathematics_judge.py")
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
