"""Verifiers: is an answer right, and which capability failed if not."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from trustmopd.quickstart.tasks import FORMS, Task


@dataclass(frozen=True)
class Verdict:
    """`right`: the answer is exactly the right one. `understood`: right, or wrong only by systematic mistakes.
    `capabilities`: which of those that the prompt needs were shown."""

    right: bool
    understood: bool
    capabilities: Mapping[str, bool]


def verify(task: Task, answer: str) -> Verdict:
    """An answer is right or wrong, ignoring trailing whitespace. Its format and its content are judged separately."""
    answer = answer.rstrip()
    shown: dict[str, bool] = {}
    content = answer
    if task.form is not None:
        opener, closer = FORMS[task.form]
        # Content is letters and digits and no delimiter is either, so content ends where they do.
        match = re.match(r"[^a-z0-9]*([a-z0-9]*)", answer.removeprefix(opener))
        content = match[1] if match else ""
        shown["if"] = answer == opener + content + closer
    if "math" in task.capabilities and "code" in task.capabilities:
        shown |= _judge_program_on_sum(task, content)
    elif task.domain == "if":
        shown["if"] = shown["if"] and content == task.operand
    else:
        shown[task.capabilities[0]] = content == task.run(task.value())
    needed = task.capabilities
    mistaken = (wrong for size in range(len(needed) + 1) for wrong in combinations(needed, size))
    return Verdict(
        right=answer == task.answer(),
        understood=any(answer == task.answer(wrong) for wrong in mistaken),
        capabilities={name: shown[name] for name in needed},
    )


def _judge_program_on_sum(task: Task, content: str) -> dict[str, bool]:
    """The program is right if its output comes from some number with as many digits as the sum; the sum is right if
    that number is the sum. If the program is wrong only in the last character, the others still show the sum."""
    total = task.value()
    places = task.run("".join(chr(ord("a") + place) for place in range(len(total))))  # which digit each character is
    if len(content) != len(places):
        return {"math": False, "code": False}
    digits = dict(zip(places, content, strict=True))
    number = "".join(digits.get(chr(ord("a") + place), digit) for place, digit in enumerate(total))
    code = number.isdigit() and task.run(number) == content
    math = number == total if code else content[:-1] == task.run(total)[:-1]
    return {"math": math, "code": code}
