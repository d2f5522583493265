"""Code: small functions of lists, composed from steps; some compositions are for evaluation alone. And their check."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from studies.smollm2.held_out import part
from studies.smollm2.tasks import Check, Task
from trustmopd.evaluation.graders.programs import grade_asserts

TESTS = 6
#: Seconds for all tests of a function: right ones take milliseconds.
TIME_LIMIT = 2.0
_EXAMPLES = 1
NUMBERS, WORDS, VALUE = "numbers", "words", "value"
_VOCABULARY = (
    *("apple", "river", "stone", "cloud", "green", "table", "light", "music", "paper", "window", "garden", "yellow"),
    *("bread", "orange", "summer", "winter", "dog", "cat", "sun", "moon", "tree", "bird", "fish", "book", "chair"),
    *("house", "train", "water", "salt", "honey"),
)


@dataclass(frozen=True)
class Step:
    """`phrase` says what happens to the list, `code` does it to `x`; `k` in either is a number that is drawn."""

    name: str
    takes: str
    gives: str
    kind: str
    phrases: tuple[str, ...]
    code: str
    draws: tuple[Any, ...] = (None,)


_STEPS = (
    *(
        Step(name, NUMBERS, NUMBERS, "filter", phrases, f"[n for n in x if {test}]", draws)
        for name, phrases, test, draws in (
            ("even", ("keeps only the even numbers", "drops the odd numbers"), "n % 2 == 0", (None,)),
            ("odd", ("keeps only the odd numbers", "drops the even numbers"), "n % 2 != 0", (None,)),
            ("positive", ("keeps only the positive numbers",), "n > 0", (None,)),
            ("negative", ("keeps only the negative numbers",), "n < 0", (None,)),
            ("above", ("keeps only the numbers greater than {k}",), "n > {k}", (1, 2, 3, 4, 5)),
            ("below", ("keeps only the numbers less than {k}",), "n < {k}", (4, 5, 6, 7, 8)),
            ("multiples", ("keeps only the multiples of {k}",), "n % {k} == 0", (3, 4, 5)),
        )
    ),
    *(
        Step(name, NUMBERS, NUMBERS, "map", phrases, f"[{value} for n in x]", draws)
        for name, phrases, value, draws in (
            ("double", ("doubles each number", "multiplies each number by two"), "n * 2", (None,)),
            ("square", ("squares each number",), "n * n", (None,)),
            ("add", ("adds {k} to each number", "increases each number by {k}"), "n + {k}", (1, 2, 3, 5, 10)),
            ("subtract", ("subtracts {k} from each number",), "n - {k}", (1, 2, 3, 5, 10)),
            ("negate", ("changes the sign of each number",), "-n", (None,)),
            ("absolute", ("takes the absolute value of each number",), "abs(n)", (None,)),
            ("times", ("multiplies each number by {k}",), "n * {k}", (3, 4, 5, 10)),
        )
    ),
    *(
        Step(name, type_, type_, kind, phrases, code, draws)
        for type_ in (NUMBERS, WORDS)
        for name, kind, phrases, code, draws in (
            ("reverse", "order", ("reverses the order of the list",), "x[::-1]", (None,)),
            ("first", "pick", ("takes the first {k} items",), "x[:{k}]", (2, 3, 4)),
            ("last", "pick", ("takes the last {k} items",), "x[-{k}:]", (2, 3, 4)),
            ("second", "pick", ("takes every second item, starting with the first",), "x[::2]", (None,)),
            ("behead", "pick", ("removes the first item",), "x[1:]", (None,)),
            ("curtail", "pick", ("removes the last item",), "x[:-1]", (None,)),
        )
    ),
    Step("ascending", NUMBERS, NUMBERS, "order", ("sorts the list from smallest to largest",), "sorted(x)"),
    Step(
        "descending", NUMBERS, NUMBERS, "order", ("sorts the list from largest to smallest",), "sorted(x, reverse=True)"
    ),
    *(
        Step(name, NUMBERS, VALUE, "end", phrases, code)
        for name, phrases, code in (
            ("sum", ("returns the sum",), "sum(x)"),
            ("count", ("returns how many numbers there are",), "len(x)"),
            ("largest", ("returns the largest number",), "max(x)"),
            ("smallest", ("returns the smallest number",), "min(x)"),
        )
    ),
    *(
        Step(name, WORDS, WORDS, "filter", phrases, f"[w for w in x if {test}]", draws)
        for name, phrases, test, draws in (
            ("longer", ("keeps only the words longer than {k} letters",), "len(w) > {k}", (3, 4, 5)),
            ("shorter", ("keeps only the words shorter than {k} letters",), "len(w) < {k}", (5, 6)),
            ("containing", ("keeps only the words that contain the letter '{k}'",), "'{k}' in w", tuple("aeort")),
            ("starting", ("drops the words that start with '{k}'",), "not w.startswith('{k}')", tuple("bgstw")),
        )
    ),
    *(
        Step(name, WORDS, WORDS, "map", phrases, f"[{value} for w in x]")
        for name, phrases, value in (
            ("upper", ("turns each word into upper case",), "w.upper()"),
            ("backwards", ("spells each word backwards",), "w[::-1]"),
            ("initial", ("takes the first letter of each word",), "w[0]"),
            ("exclaim", ("adds an exclamation mark to each word",), "w + '!'"),
        )
    ),
    Step("lengths", WORDS, NUMBERS, "map", ("replaces each word by its length",), "[len(w) for w in x]"),
    Step("alphabetical", WORDS, WORDS, "order", ("sorts the words alphabetically",), "sorted(x)"),
    Step("by-length", WORDS, WORDS, "order", ("sorts the words by length",), "sorted(x, key=len)"),
    Step("join", WORDS, VALUE, "end", ("joins the words with '{k}'",), "'{k}'.join(x)", tuple("-_+")),
    Step("how-many", WORDS, VALUE, "end", ("returns how many words there are",), "len(x)"),
)


def check(arguments: dict[str, Any], response: str) -> bool:
    """Whether the last code block that defines the function, or the response where it has no block, passes every test
    in the sandbox."""
    name, tests = arguments["function"], arguments["tests"]
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", response, re.DOTALL) or [response]
    code = next((block for block in reversed(blocks) if f"def {name}(" in block), "")
    asserts = "\n".join(f"assert {name}({argument!r}) == {expected!r}" for argument, expected in tests)
    return bool(code) and grade_asserts({"tests": asserts}, code, TIME_LIMIT).score == 1.0


def compositions(most_steps: int = 3) -> list[tuple[Step, ...]]:
    """Every sequence of two or more steps that fit together, no two neighbours of one kind."""
    fitting = []
    for length in range(2, most_steps + 1):
        for steps in product(_STEPS, repeat=length):
            fits = all(a.gives == b.takes and a.kind != b.kind for a, b in pairwise(steps))
            if fits and len({step.name for step in steps}) == length:
                fitting.append(steps)
    return fitting


def name_of(steps: Sequence[Step]) -> str:
    return f"{steps[0].takes}:{'>'.join(step.name for step in steps)}"


def tasks(held_out: bool, count: int, rng: random.Random) -> list[Task]:
    """Functions of as many different compositions as there are, in turn; half of them of two steps, half of three."""
    every = {name_of(steps): steps for steps in compositions()}
    pools: dict[int, list[tuple[Step, ...]]] = {}
    for name in part(list(every), held_out):
        pools.setdefault(len(every[name]), []).append(every[name])
    made: dict[str, Task] = {}
    while len(made) < count:
        task = _task(rng.choice(pools[2 + len(made) % 2]), rng)
        if task is not None:
            made.setdefault(task.prompt, task)
    return list(made.values())


def _task(steps: Sequence[Step], rng: random.Random) -> Task | None:
    """None where the tests would not tell the function from one that leaves a step out."""
    drawn = [(step, rng.choice(step.draws)) for step in steps]
    codes = [step.code.replace("{k}", str(k)) for step, k in drawn]
    inputs = list(_inputs(steps[0].takes, rng))
    parameter = steps[0].takes
    try:
        expected = _values(_source(parameter, codes), inputs)
    except ValueError:  # the largest number of an empty list
        return None
    shorter = [_source(parameter, [*codes[:i], *codes[i + 1 :]]) for i in range(len(codes))]
    if any(_same(source, inputs, expected) for source in shorter):
        return None
    phrases = [rng.choice(step.phrases).replace("{k}", str(k)) for step, k in drawn]
    of = "integers" if parameter == NUMBERS else "words"
    listed = ", ".join(phrases[:-1]) + f", and then {phrases[-1]}"
    example = f"solve({inputs[0]!r}) returns {expected[0]!r}"
    returned = "" if steps[-1].kind == "end" and phrases[-1].startswith("returns") else ", and returns the result"
    wanted = f"Write a Python function `solve({parameter})` that takes a list of {of}, {listed}{returned}."
    tests = [list(pair) for pair in zip(inputs[_EXAMPLES:], expected[_EXAMPLES:], strict=True)]
    return Task(
        id=f"{name_of(steps)}/{'/'.join(str(k) for _, k in drawn if k is not None)}",
        domain="code",
        prompt=f"{wanted} For example, {example}.",
        checks=(Check("function", {"function": "solve", "tests": tests}),),
        solution=f"```python\n{_source(parameter, codes)}\n```",
    )


def _source(parameter: str, codes: Sequence[str]) -> str:
    lines = [re.sub(r"\bx\b", parameter, code) for code in codes]
    body = [f"    {parameter} = {line}" for line in lines[:-1]] + [f"    return {lines[-1]}"]
    return "\n".join([f"def solve({parameter}):", *body])


def _values(source: str, inputs: Sequence[Any]) -> list[Any]:
    """Of a function of our own. A model's functions run in the sandbox alone."""
    names: dict[str, Any] = {}
    exec(source, names)
    return [names["solve"](list(argument)) for argument in inputs]


def _same(source: str, inputs: Sequence[Any], expected: Sequence[Any]) -> bool:
    try:
        return _values(source, inputs) == expected
    except (ValueError, IndexError, TypeError, AttributeError):  # words may be left where numbers should be
        return False


def _inputs(takes: str, rng: random.Random) -> Iterator[list[Any]]:
    for _ in range(_EXAMPLES + TESTS):
        size = rng.randint(5, 8)
        yield [rng.randint(-9, 20) for _ in range(size)] if takes == NUMBERS else rng.sample(_VOCABULARY, size)
