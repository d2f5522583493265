"""Instruction following: an open instruction and one or two constraints that code can check.

Held out for evaluation: topics, ways to ask, and pairs of constraints. Every single constraint is trained on.
"""

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from studies.smollm2.format_solutions import follow
from studies.smollm2.held_out import part
from studies.smollm2.tasks import Check, Task, passes

_FORMS = (
    "Write a short note about {topic}.",
    "Describe {topic}.",
    "Give some advice about {topic}.",
    "Tell me something interesting about {topic}.",
    "Write a short message to a friend about {topic}.",
    "Why do people care about {topic}?",
    "Write a short advertisement about {topic}.",
    "Explain {topic} to a child.",
    "What should a beginner know about {topic}?",
    "Write a diary entry about {topic}.",
    "Summarise what is known about {topic}.",
    "Write the opening of a story about {topic}.",
    "Write a short review of {topic}.",
    "Compare {topic} today with {topic} a hundred years ago.",
)
_TOPICS = (
    *("the sea", "bicycles", "bread", "winter", "cats", "mountains", "trains", "coffee", "gardens", "rain"),
    *("public libraries", "chess", "the moon", "bees", "football", "old maps", "volcanoes", "tea", "dogs", "rivers"),
    *("painting", "markets", "islands", "clocks", "soup", "birds", "castles", "autumn leaves", "jazz", "bridges"),
    *("the desert", "horses", "cheese", "stars", "letters by post", "swimming", "forests", "owls", "museums", "honey"),
    *(
        "night trains",
        "camping",
        "apples",
        "lighthouses",
        "violins",
        "snow",
        "city parks",
        "whales",
        "pottery",
        "kites",
    ),
    *(
        "street food",
        "mushrooms",
        "photography",
        "school days",
        "robots",
        "wind",
        "cooking",
        "spring",
        "turtles",
        "wool",
    ),
    *("electric cars", "paper", "early mornings", "sailing", "dancing", "salt", "comets", "ants", "theatre", "beaches"),
    *("puzzles", "running", "rice", "trees", "radio", "neighbours", "bakeries", "sleep", "languages", "ice cream"),
)
_OPENERS = ("Today", "Honestly", "Imagine", "Listen", "Nobody", "Sometimes", "Remember", "Perhaps")
_CLOSINGS = ("Thank you for reading.", "That is all for now.", "Try it yourself.", "More on that tomorrow.")
_KEYWORDS = ("bright", "slow", "simple", "wonder", "careful", "old", "quiet", "together", "fresh", "golden")
_TRIES = 60
_PLAIN = ("very", "and", "is", "it", "people", "can")


@dataclass(frozen=True)
class Constraint:
    """`slot`: two constraints of one slot cannot go together. `phrase` is filled with what `draws` gives."""

    kind: str
    slot: str
    phrase: str
    check: Callable[[dict[str, Any], str], bool]
    draws: Mapping[str, tuple[Any, ...]]


def _lines(response: str) -> list[str]:
    return [line.strip() for line in response.strip().split("\n") if line.strip()]


def _words(response: str) -> list[str]:
    return re.findall(r"[A-Za-z0-9'’]+", response)


def _sentences(response: str) -> int:
    return len([part for part in re.split(r"[.!?]+(?:[\"'”)]*)(?:\s+|$)", response.strip()) if part.strip()])


def _count(word: str, response: str) -> int:
    return len(re.findall(rf"\b{re.escape(word)}\b", response, re.IGNORECASE))


def _bullets(values: dict[str, Any], response: str) -> bool:
    return sum(bool(re.match(r"[-*•]\s+\S", line)) for line in _lines(response)) == values["n"]


def _numbered(values: dict[str, Any], response: str) -> bool:
    marks = [int(mark[1]) for line in _lines(response) if (mark := re.match(r"(\d{1,3})[.)]\s+\S", line))]
    return marks == list(range(1, values["n"] + 1))


def _paragraphs(values: dict[str, Any], response: str) -> bool:
    parts = [part.strip() for part in re.split(r"^\s*\*\*\*\s*$", response.strip(), flags=re.MULTILINE)]
    return len(parts) == values["n"] and all(parts)


def _json(values: dict[str, Any], response: str) -> bool:
    text = re.sub(r"^```(?:json)?\s*|\s*```$", "", response.strip())
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and set(value) == {values["a"], values["b"]}


_CONSTRAINTS = (
    Constraint("bullets", "shape", "Answer with exactly {n} bullet points.", _bullets, {"n": (2, 3, 4)}),
    Constraint("numbered", "shape", "Answer with a numbered list of exactly {n} items.", _numbered, {"n": (3, 4, 5)}),
    Constraint(
        "sentences",
        "shape",
        "Use exactly {n} sentences.",
        lambda values, response: _sentences(response) == values["n"],
        {"n": (2, 3, 4)},
    ),
    Constraint(
        "paragraphs", "shape", "Write {n} paragraphs with a line of *** between them.", _paragraphs, {"n": (2, 3)}
    ),
    Constraint(
        "json",
        "all",
        'Answer with a JSON object that has the keys "{a}" and "{b}" and no others.',
        _json,
        {"a": ("title", "topic"), "b": ("text", "reason")},
    ),
    Constraint(
        "lower",
        "case",
        "Write everything in lower case.",
        lambda _, response: bool(response.strip()) and response == response.lower(),
        {},
    ),
    Constraint(
        "upper",
        "case",
        "WRITE IN CAPITAL LETTERS ONLY.",
        lambda _, response: bool(_words(response)) and response == response.upper(),
        {},
    ),
    Constraint(
        "no-commas",
        "marks",
        "Do not use any commas.",
        lambda _, response: len(_words(response)) >= 5 and "," not in response,
        {},
    ),
    Constraint(
        "starts",
        "start",
        'Begin with the word "{word}".',
        lambda values, response: bool(re.match(rf"{values['word']}\b", response.strip(), re.IGNORECASE)),
        {"word": _OPENERS},
    ),
    Constraint(
        "title",
        "start",
        "Begin with a title in double square brackets, such as [[my title]].",
        lambda _, response: bool(re.match(r"\[\[[^\[\]\n]+\]\]\s*\S", response.strip())),
        {},
    ),
    Constraint(
        "ends",
        "end",
        'End with exactly this sentence: "{words}"',
        lambda values, response: response.strip().lower().endswith(values["words"].lower()),
        {"words": _CLOSINGS},
    ),
    Constraint(
        "postscript",
        "end",
        "Add a postscript at the end that starts with P.S.",
        lambda _, response: bool(re.search(r"\nP\.\s?S\.:?\s+\S", response, re.IGNORECASE)),
        {},
    ),
    Constraint(
        "keyword",
        "words",
        'Use the word "{word}" at least {n} times.',
        lambda values, response: _count(values["word"], response) >= values["n"],
        {"word": _KEYWORDS, "n": (2, 3)},
    ),
    Constraint(
        "avoid",
        "words",
        'Do not use the word "{word}".',
        lambda values, response: len(_words(response)) >= 10 and _count(values["word"], response) == 0,
        {"word": _PLAIN},
    ),
    Constraint(
        "short",
        "length",
        "Use at most {n} words.",
        lambda values, response: 3 <= len(_words(response)) <= values["n"],
        {"n": (15, 20, 30, 40)},
    ),
    Constraint(
        "quoted",
        "all",
        "Put your whole answer in double quotation marks.",
        lambda _, response: bool(re.fullmatch(r'"[^"]{3,}"', response.strip())),
        {},
    ),
)
CHECKS: Mapping[str, Callable[[dict[str, Any], str], bool]] = {
    constraint.kind: constraint.check for constraint in _CONSTRAINTS
}


def mixtures() -> list[tuple[Constraint, ...]]:
    """Single constraints, and the pairs that can be followed together."""
    pairs = [pair for pair in combinations(_CONSTRAINTS, 2) if pair[0].slot != pair[1].slot]
    return [*((one,) for one in _CONSTRAINTS), *(pair for pair in pairs if "all" not in (pair[0].slot, pair[1].slot))]


def name_of(mixture: tuple[Constraint, ...]) -> str:
    return "+".join(constraint.kind for constraint in mixture)


def tasks(held_out: bool, count: int, rng: random.Random) -> list[Task]:
    """Two thirds with one constraint, one third with two."""
    return [task for task, _ in _drawn(held_out, count, rng)]


def solved_tasks(count: int, rng: random.Random) -> list[Task]:
    """Tasks to train on, each with a response that follows its constraints; some that are hard to follow are left
    out."""
    solved: list[Task] = []
    for task, topic in _drawn(False, 2 * count, rng):
        tries = (follow(task.checks, topic, rng) for _ in range(_TRIES))
        solution = next((response for response in tries if passes(task, response)), None)
        solved += [replace(task, solution=solution)] if solution is not None else []
    return solved[:count]


def _drawn(held_out: bool, count: int, rng: random.Random) -> list[tuple[Task, str]]:
    """Tasks with their topics."""
    topics, forms = part(_TOPICS, held_out), part(_FORMS, held_out)
    single = [mixture for mixture in mixtures() if len(mixture) == 1]
    names = set(part([name_of(mixture) for mixture in mixtures() if len(mixture) == 2], held_out))
    pairs = [mixture for mixture in mixtures() if name_of(mixture) in names]
    made: dict[str, tuple[Task, str]] = {}
    for number in range(100 * count):
        if len(made) == count:
            break
        mixture = rng.choice(pairs if number % 3 == 2 else single)
        form, topic = rng.choice(forms), rng.choice(topics)
        task = _task(mixture, form.format(topic=topic), rng)
        made.setdefault(task.prompt, (task, topic))
    return list(made.values())


def _task(mixture: tuple[Constraint, ...], instruction: str, rng: random.Random) -> Task:
    drawn = [draw(constraint.kind, rng) for constraint in mixture]
    prompt = " ".join([instruction, *(phrase for _, phrase in drawn)])
    checks = tuple(check for check, _ in drawn)
    return Task(id=f"{name_of(mixture)}/{prompt}", domain="if", prompt=prompt, checks=checks)


def draw(kind: str, rng: random.Random) -> tuple[Check, str]:
    """A constraint of this kind: its check, and how it is put."""
    constraint = next(one for one in _CONSTRAINTS if one.kind == kind)
    drawn = {name: rng.choice(values) for name, values in constraint.draws.items()}
    return Check(kind, drawn), constraint.phrase.format(**drawn)
