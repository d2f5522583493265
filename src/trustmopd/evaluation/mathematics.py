"""Mathematics: the last boxed answer, compared by math-verify in a process that can be killed."""

import json
import re
import select
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

from trustmopd.evaluation.benchmark import Grade, Unavailable
from trustmopd.evaluation.quantities import (
    NUMBER,
    PERCENT,
    as_latex,
    bare,
    in_figures,
    number_of,
    scales_asked_for,
    with_its_words,
)
from trustmopd.evaluation.rows import Row

#: Seconds for one comparison: SymPy can be sent round in circles by a short string. With the start of a new process,
#: which the next answer may have to wait for, it stays below five.
TIME_LIMIT = 2.0
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."

_TOKEN = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|\\.|\{|\}", re.DOTALL)
#: One word may lead to an answer, if it does not begin a sentence: "is thus 204", and not "is: thus, in 3 hours, …".
_LEAD = r"(?:(?:therefore|thus|exactly|indeed|equal to)\b(?![\s:,*$]*[A-Za-z]{2})[\s:,]*)?"
_STATEMENT = re.compile(rf"\banswer\b[*\s]*(?:is\b(?! not\b)|:|=)[*\s:=,]*{_LEAD}([^\n]{{1,200}})", re.IGNORECASE)
#: Where what an answer is ends, and the reasons begin: a word behind a comma that is in no brackets, "3 fewer than …",
#: "for n = 5", …
_REASONS = re.compile(
    r"[,;]\s+(?=[$*(]*(?:[A-Za-z]|\d+ (?:more|less|fewer)\b))(?![^(\[{]*[)\]}])|\.\s"
    r"|\s(?:because|since|as|where|when|if|so|but|which|i\.e)\b"
    r"|\s(?:for|with|given|at|assuming)\W+\w+\W*=|(?<=[\w$*)}])\s\([^()]*\)\W*$"
)
_EQUALS = re.compile(r"(?<![<>!=\\])=(?!=)")
#: x = 5 or y = 6 are two answers.
_SEVERAL = re.compile(r"=.*(?:,|;|\bor\b|\band\b)[\s$]*[A-Za-z]\w?[\s$]*=")
_NUMBER_ENDS = re.compile(r"[\s.,;:!?*$)]|\\?%|$")
#: The end of a formula, and bold type: 5 ** 2 is a power.
_MARKUP = re.compile(r"\$|\*\*(?!\s?\d)|(?<=\s)\*\*(?=\d)")
#: What leads from a number to a second: 36 over 2, 3 to 4, 3 apples and 4 pears, 3 ft 6 in.
_ON_TO = (
    r"\s*(?:times|plus|minus|over|choose|divided by|multiplied by|to|–|remainder)|[A-Za-z\s]*(?:[,;&]|\s:|\b(?:and|or))"
    r"|\s*(?:years?|months?|weeks?|days?|hours?|hrs?|h|min(?:ute)?s?|k?m|kg|yards?|feet|foot|ft|pounds?|lbs?|dollars?)"
)
#: What makes more of a number: an operation, a command, a second number, but for that of "to 2 decimal places".
_GOES_ON = re.compile(
    r"(?:\s*\*\*|!?\s*[-+*/×÷·^])\s*(?:[\d(.√\\]|[b-z]\b|sqrt)|\s*√|\s*\\(?!%)"
    rf"|(?:{_ON_TO})\s*\d(?!\d* (?:sig|dec))"
)
_threads = threading.local()


def grade_answer(row: Row, response: str) -> Grade:
    """Passed if the last box equals `row["answer"]`. Without a box, an explicit "the answer is …" counts."""
    response = in_figures(response)
    return _grade(row, last_boxed(response) or _statement(response))


def grade_number(row: Row, response: str) -> Grade:
    """As `grade_answer`, but without either the last number counts, as is the custom for word problems, and so it does
    where the statement begins with words ("is about 18"). What stands before #### in the reference is working, and so
    is what GSM8K's calculator notes, <<2*9=18>>."""
    response = in_figures(re.sub("<<[^<>]*>>", "", response))
    given, prose = last_boxed(response), response
    if given is None and (said := _statement(response)):
        has_number = NUMBER.search(said) is not None
        if re.search(r"[\\=]|^[^A-Za-z]", said) or (has_number and not re.search("[A-Za-z]{2}", said)):
            given = said
        elif has_number:
            prose = said
    prose = re.sub(r"(?<=[A-Za-z}])\^\{?[23]\}?", "", prose)  # the 2 of cm^2 is no answer
    if given is None and (numbers := list(NUMBER.finditer(prose))):
        given = with_its_words(prose, numbers[-1])
    return _grade({**row, "answer": str(row["answer"]).rpartition("####")[2]}, given)


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
            # Else the last one lies within, or this one is the question's own \boxed{}.
            if start is not None and start > begin and text[start : token.start()].strip():
                begin, end = start, token.start()
        elif symbol.endswith("{") and len(symbol) > 2:
            opened.append(token.end())
    return text[begin:end].strip() or None


def equal(reference: str, answer: str, *, asked: frozenset[str] = frozenset()) -> bool | None:
    """Whether two answers are the same; None if that could not be decided in time. 18% is 0.18, and where a percentage
    is asked for (by `asked`, or the reference has one) 18 too; the same holds for dozens and other scales."""
    asked |= {PERCENT} if "%" in reference else frozenset()
    literal = _compare(reference, answer, frozenset())
    return _compare(reference, answer, asked) if asked and literal is False else literal


def _compare(reference: str, answer: str, leave: frozenset[str]) -> bool | None:
    expected, given = number_of(reference, leave, strict=True), number_of(answer, leave)
    if expected is not None and given is not None:
        return expected == given
    if not hasattr(_threads, "judge"):
        _threads.judge = _Judge()
    return _threads.judge.ask(as_latex(reference, leave, strict=True), as_latex(answer, leave))


def ready() -> None:
    if find_spec("math_verify") is None:
        raise Unavailable("grading mathematics needs math-verify. Install it: pip install 'trustmopd[eval]'.")


def _grade(row: Row, given: str | None) -> Grade:
    if given is None:
        return Grade(0.0, {"extracted": None})
    verdict = equal(str(row["answer"]), given, asked=scales_asked_for(str(row.get("prompt", ""))))
    return Grade(float(verdict is True), {"extracted": given, **({"undecided": True} if verdict is None else {})})


def _statement(text: str) -> str | None:
    """What the last "answer is …" says before its reasons: of sides of an equation the last that is a number ("8" of
    "5 + 3 = 8", "18" of "18 = 2 × 9"), or the last."""
    statements = _STATEMENT.findall(text)
    if not statements:
        return None
    clause = re.sub(r"(?<=\d)\s*x\s*(?=\d)", r" \\times ", re.sub(r"\\[()$]", "", statements[-1]))
    if _SEVERAL.search(clause):
        return clause
    if reasons := _REASONS.search(clause):
        clause = clause[: reasons.start()]
    sides = [side.lstrip(" *_$≈~\"'“`").rstrip(" *_$.\\\"'”`") for side in _EQUALS.split(clause)]
    numbers = [number for side in sides if (number := _number(side))]
    return numbers[-1] if numbers else sides[-1] or None


def _number(side: str) -> str | None:
    """The number that a side begins with, unless it is the beginning of a calculation."""
    opened = bare(side)
    number = NUMBER.match(opened)
    behind = opened[number.end() :] if number else ""
    if number and _NUMBER_ENDS.match(behind) and not _GOES_ON.match(_MARKUP.sub("", behind)):
        return with_its_words(opened, number)
    return None


class _Judge:
    """One math-verify process: asked a line, it answers a line. Too slow, it is killed, and another is started at
    once, to be there when it is needed. One for each thread, because an answer belongs to the last question."""

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
