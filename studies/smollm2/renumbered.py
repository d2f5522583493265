"""Mathematics: SVAMP's train problems with other numbers, and the sums that their solutions are made of."""

import random
import re
from collections.abc import Collection, Mapping, Sequence

from studies.smollm2.tasks import Task, number_task
from studies.smollm2.worked_solutions import value_of, worked_equation
from trustmopd.evaluation.benchmark import Row
from trustmopd.evaluation.graders.mathematics import INSTRUCTION

_TRIES = 100
_LARGEST = 9999


def renumbered(rows: Sequence[Row], count: int, rng: random.Random, known: Collection[str] = ()) -> list[Task]:
    """`count` problems, drawn from `rows` in turn; fewer if the rows allow no more. The text stays, its numbers are
    drawn again, of about the same size, and the answer is that of the same equation. No prompt of `known` is made."""
    suited = [row for row in rows if _numbers(row) is not None]
    made: dict[str, Task] = {}
    for number in range(10 * count if suited else 0):
        if len(made) == count:
            break
        if number % len(suited) == 0:
            rng.shuffle(suited)
        task = _renumber(suited[number % len(suited)], rng)
        if task is not None and task.prompt not in known:
            made.setdefault(task.prompt, task)
    return list(made.values())


def sums(count: int, rng: random.Random) -> list[Task]:
    """Bare sums: without them, more than half of a base's answers had a slip of arithmetic."""
    made: dict[str, Task] = {}
    while len(made) < count:
        a, b = rng.randint(2, rng.choice((20, 99, 99, 999))), rng.randint(2, rng.choice((20, 99, 99, 999)))
        few = rng.randint(2, 15)
        equation = rng.choice(
            (
                f"{a} + {b}",
                f"{a} + {b}",
                f"{max(a, b) + 1} - {min(a, b)}",
                f"{max(a, b) + 1} - {min(a, b)}",
                f"{min(a, 99)} * {few}",
                f"{few * min(b, 40)} / {few}",
            )
        )
        prompt = f"What is {equation}?\n\n{INSTRUCTION}"
        answer = f"{value_of(equation):g}"
        made.setdefault(prompt, number_task(f"sum/{equation}", prompt, answer, worked_equation(equation)))
    return list(made.values())


def _renumber(row: Row, rng: random.Random) -> Task | None:
    old = _numbers(row)
    assert old is not None
    for _ in range(_TRIES):
        new = {value: rng.randint(2, max(9, 3 * value)) for value in old}
        equation = _with(new, r"\d+(?:\.0)?", str(row["Equation"]))
        answer, solution = value_of(equation), worked_equation(equation)
        if len(set(new.values())) == len(new) and 0 < answer <= _LARGEST and not re.search(r"\d\.\d|= -", solution):
            prompt = _with(new, r"\b\d+\b", str(row["prompt"]))
            name = f"svamp-renumbered/{row['id']}/{'/'.join(map(str, new.values()))}"
            return number_task(name, prompt, f"{answer:g}", solution)
    return None


def _with(new: Mapping[int, int], pattern: str, text: str) -> str:
    return re.sub(pattern, lambda number: str(new[int(float(number[0]))]), text)


def _numbers(row: Row) -> list[int] | None:
    """The numbers in the text; None if some is no whole number, or the equation's do not each occur once."""
    text, equation = str(row["prompt"]), str(row["Equation"])
    numbers = [int(number) for number in re.findall(r"\b\d+\b", text)]
    used = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", equation)]
    whole = not re.search(r"\d[.,]\d|\d[a-z]", text) and max(numbers, default=0) <= _LARGEST
    once = all(numbers.count(int(number)) == 1 and number == int(number) for number in used)
    clear = len(set(used)) == len(used) and once
    return list(dict.fromkeys(numbers)) if whole and clear else None
