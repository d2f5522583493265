"""Mathematics: word problems of our own in SVAMP's manner, some with a number that is not needed."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studies.smollm2.held_out import is_held_out
from studies.smollm2.tasks import Task, number_task
from studies.smollm2.worked_solutions import value_of, worked_equation
from trustmopd.evaluation.graders.mathematics import INSTRUCTION


@dataclass(frozen=True)
class _Words:
    """Whom and what the stories are about."""

    names: Sequence[str]
    things: Sequence[str]
    places: Sequence[str]


_TRAINED = _Words(
    ("Anna", "Ben", "Clara", "David", "Emma", "Farid", "Grace", "Hugo", "Iris", "Jonas", "Kim", "Lena", "Mateo"),
    ("apples", "marbles", "books", "stickers", "cards", "coins", "shells", "pencils", "stamps", "cookies"),
    ("shop", "school", "farm", "library", "museum", "bakery", "park", "station"),
)
#: For evaluation alone.
_HELD_OUT = _Words(
    ("Nora", "Oscar", "Paula", "Ravi", "Sofia"), ("bottles", "ribbons", "tickets", "stones"), ("zoo", "hotel", "cinema")
)
_ABOUT = ("{name}", "{things}", "{place}")
_BLANK = dict.fromkeys(("name", "other", "things", "place"), "")


@dataclass(frozen=True)
class Story:
    """`a`, `b` and `c` are numbers; the equation must come to a whole number above 0."""

    text: str
    equation: str
    largest: int = 99


STORIES = (
    Story(
        "{name} had {a} {things}. {name} gave {b} of them to {other}. How many {things} does {name} have left?", "a - b"
    ),
    Story("{name} has {a} {things} and {other} has {b} {things}. How many do they have together?", "a + b"),
    Story("{name} has {a} {things}. {other} has {b} more than {name}. How many {things} does {other} have?", "a + b"),
    Story("{name} has {a} {things}. {other} has {b} fewer. How many {things} does {other} have?", "a - b"),
    Story(
        "{name} has {a} {things} and {b} boxes. {other} has {c} {things}. How many more {things} does {name} have?",
        "a - c",
    ),
    Story("There are {a} boxes with {b} {things} in each. How many {things} are there?", "a * b", 15),
    Story(
        "{name} put {a} {things} into {b} bags, the same number in each. How many {things} are in each bag?", "a / b"
    ),
    Story("{name} puts {b} {things} into each bag. How many bags are needed for {a} {things}?", "a / b"),
    Story(
        "A {place} had {a} visitors on Monday, {b} on Tuesday and {c} on Wednesday. How many visitors came in all?",
        "a + b + c",
    ),
    Story(
        "A {place} had {a} guests on Monday, {b} on Tuesday, {c} on Friday. How many more came on Monday than Tuesday?",
        "a - b",
    ),
    Story(
        "{name} found {a} {things} in the morning, {b} in the evening, and then lost {c}. How many {things} are left?",
        "a + b - c",
    ),
    Story(
        "{name} had {a} dollars and bought {b} {things} for {c} dollars each. How many dollars are left?", "a - b * c"
    ),
    Story(
        "{name} buys {a} {things} for {b} dollars each and a bag for {c} dollars. How much does it cost in all?",
        "a * b + c",
        12,
    ),
    Story("After {name} gave away {a} {things}, {b} were left. How many {things} did {name} have at first?", "a + b"),
    Story(
        "{name} had {a} {things} and found some more. Now {name} has {b} {things}. How many did {name} find?", "b - a"
    ),
    Story("{name} needs {a} {things} and has {b}. {other} has {c}. How many more does {name} need?", "a - b"),
    Story(
        "There are {a} rows of {b} chairs at the {place}. {c} chairs are taken. How many chairs are free?",
        "a * b - c",
        15,
    ),
    Story("A book has {a} pages. {name} reads {b} pages a day. How many days does it take to read the book?", "a / b"),
    Story(
        "{name} read {a} pages on Monday and {b} on Tuesday. The book has {c} pages. How many pages are left?",
        "c - a - b",
    ),
    Story("{name} walks {a} km each day. How many km does {name} walk in {b} days?", "a * b", 15),
    Story("{name} is {a} years old and {other} is {b} years younger. How old is {other}?", "a - b"),
    Story("{name} is {a} years old. How old will {name} be in {b} years?", "a + b"),
    Story("A {place} sold {a} {things} for {b} dollars each. How much money did it take?", "a * b", 15),
    Story(
        "A {place} sold {a} {things} and {b} bags, and had {c} {things} left. How many {things} did it have at first?",
        "a + c",
    ),
    Story("{a} children share {b} {things} equally. How many does each child get?", "b / a"),
    Story(
        "{name} had {a} red and {b} blue {things}. {c} of the red ones broke. How many red {things} are left?", "a - c"
    ),
    Story("A bus had {a} people. {b} got off and {c} got on. How many people are on the bus now?", "a - b + c"),
    Story(
        "{name} has {a} {things}, and {other} has {b} times as many. How many {things} does {other} have?", "a * b", 12
    ),
    Story(
        "{name} saved {a} dollars a week for {b} weeks and spent {c} dollars. How many dollars are left?",
        "a * b - c",
        15,
    ),
    Story("A pack of {things} costs {a} dollars. It is {b} dollars cheaper today. How much is a pack today?", "a - b"),
)


def tasks(count: int, rng: random.Random, held_out: bool = False) -> list[Task]:
    """Those held out have numbers that their story does not have in training, and are about other people, things and
    places. A story about none of these is not among them."""
    chosen = [story for story in STORIES if not held_out or any(name in story.text for name in _ABOUT)]
    made: dict[str, Task] = {}
    while len(made) < count:
        story = rng.choice(chosen)
        numbers, equation = draw(story, rng)
        if is_held_out(story.text.format(**numbers, **_BLANK)) == held_out:
            text = tell(story, numbers, rng, _HELD_OUT if held_out else _TRAINED)
            prompt, answer = f"{text}\n\n{INSTRUCTION}", f"{value_of(equation):g}"
            made.setdefault(prompt, number_task(f"story/{text}", prompt, answer, worked_equation(equation)))
    return list(made.values())


def draw(story: Story, rng: random.Random) -> tuple[dict[str, int], str]:
    """Numbers for its letters, and the equation with them; it comes to a whole number above 0."""
    while True:
        largest = story.largest * rng.choice((1, 1, 1, 10 if story.largest == 99 else 1))
        numbers = {letter: rng.randint(2, largest) for letter in "abc"}
        if " / " in story.equation:  # so that the division comes out
            top, bottom = story.equation.split(" / ")
            numbers[bottom] = rng.randint(2, 12)
            numbers[top] = numbers[bottom] * rng.randint(2, 15)
        equation = "".join(str(numbers.get(sign, sign)) for sign in story.equation)
        if value_of(equation) > 0:
            return numbers, equation


def tell(story: Story, letters: Mapping[str, Any], rng: random.Random, words: _Words = _TRAINED) -> str:
    """Its text with people and things, and `letters` for its numbers."""
    name, other = rng.sample(words.names, 2)
    things, place = rng.choice(words.things), rng.choice(words.places)
    return story.text.format(**letters, name=name, other=other, things=things, place=place)
