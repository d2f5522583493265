"""The three domains of the small world and their mixtures, as one small language.

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
