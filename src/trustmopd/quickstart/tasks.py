"""The three domains of the small world and their mixtures, as one small language, and whether an answer is right.

    prompt     = [form ":"] expression
    expression = word | number ("+" | "-") number | function "(" expression ")"

`47+38` is arithmetic, `rev(sort(dab))` a string program, `square:hello` format following; `square:47+38`,
`square:rev(dab)` and `rev(47+38)` need two capabilities each. Capabilities, right
answer and systematic mistakes all follow from the text of the prompt.
"""

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import combinations

DOMAINS = ("math", "code", "if")
MIXTURES = ("math+code", "math+if", "code+if")

FUNCTIONS: Mapping[str, Callable[[str], str]] = {
    "rev": lambda text: text[::-1],
    "sort": lambda text: "".join(sorted(text)),
    "dup": lambda text: text + text,
    "rot": lambda text: text[1:] + text[:1],
    "drop": lambda text: text[1:],
    "swap": lambda text: text[-1] + text[1:-1] + text[0] if len(text) > 1 else text,
    "next": lambda text: "".join("a" if letter == "z" else chr(ord(letter) + 1) for letter in text),
}
# On a sum: functions that only move its digits about, so that each capability can get its own character wrong.
ON_DIGITS = ("rev", "dup", "rot", "swap")
FORMS: Mapping[str, tuple[str, str]] = {
    "square": ("[", "]"),
    "round": ("(", ")"),
    "curly": ("{", "}"),
    "angle": ("<", ">"),
    "quote": ('"', '"'),
    "star": ("*", "*"),
    "bar": ("|", "|"),
    "json": ('{"a":"', '"}'),
}
_OPERATORS = {"+": operator.add, "-": operator.sub}
_PROMPT = re.compile(
    r"(?:(?P<form>[a-z]+):)?(?P<calls>(?:[a-z]+\()*)(?:(?P<sum>\d+[+-]\d+)|(?P<word>[a-z]+))(?P<close>\)*)"
)


@dataclass(frozen=True)
class Task:
    """A prompt, parsed. `functions` in the order in which they are applied: the innermost first."""

    prompt: str
    form: str | None
    functions: tuple[str, ...]
    operand: str

    @cached_property
    def capabilities(self) -> tuple[str, ...]:
        needs = {"math": self.operand[0].isdigit(), "code": bool(self.functions), "if": self.form is not None}
        return tuple(name for name in DOMAINS if needs[name])

    @property
    def kind(self) -> str:
        """The domain, or the names of a mixture's domains joined by `+`."""
        return "+".join(self.capabilities)

    @property
    def domain(self) -> str | None:
        return self.capabilities[0] if len(self.capabilities) == 1 else None

    @property
    def id(self) -> str:
        return f"{self.kind}-{blake2b(self.prompt.encode(), digest_size=6).hexdigest()}"

    def value(self) -> str:
        """What the functions are applied to: the word, or the digits of the sum."""
        match = re.fullmatch(r"(\d+)([+-])(\d+)", self.operand)
        return str(_OPERATORS[match[2]](int(match[1]), int(match[3]))) if match else self.operand

    def run(self, text: str) -> str:
        """The program, evaluated on `text`."""
        for name in self.functions:
            text = FUNCTIONS[name](text)
        return text

    def answer(self, mistakes: Collection[str] = ()) -> str:
        """The right answer, or the one with the systematic mistake of each capability in `mistakes`: the last digit of
        the result one too high, the last letter of the output an x, the closing delimiter a full stop."""
        value = self.value()
        if "math" in mistakes:
            value = value[:-1] + str((int(value[-1]) + 1) % 10)
        value = self.run(value)
        if "code" in mistakes:
            value = value[:-1] + "x"
        if self.form is None:
            return value
        opener, closer = FORMS[self.form]
        return opener + value + ("." if "if" in mistakes else closer)


def parse(prompt: str) -> Task:
    """Read a prompt of the small world; any other text is an error."""
    match = _PROMPT.fullmatch(prompt)
    functions = tuple(reversed(match["calls"].split("(")[:-1])) if match else ()
    if (
        match is None
        or len(match["close"]) != len(functions)
        or (match["form"] is not None and match["form"] not in FORMS)
        or not set(functions) <= set(FUNCTIONS)
        or (match["form"] is None and match["word"] is not None and not functions)
        or not (match["word"] or set(functions) <= set(ON_DIGITS))
    ):
        raise ValueError(
            f"{prompt!r} is not a prompt of the small world. Write a sum (47+38), a program (rev(sort(dab)); functions "
            f"{', '.join(FUNCTIONS)}, on a sum {', '.join(ON_DIGITS)}), or a form with either or a word "
            f"(square:hello; forms {', '.join(FORMS)})."
        )
    task = Task(prompt, match["form"], functions, match["sum"] or match["word"])
    if task.value().startswith("-"):
        raise ValueError(f"{prompt!r} has a result below zero, and the small world has none. Swap the two numbers.")
    return task


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
