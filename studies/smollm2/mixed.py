"""Prompts of two domains, in MultiCap's manner: a response must pass the checks of both."""

import random
from collections.abc import Sequence

from studies.smollm2 import constraints, stories
from studies.smollm2.held_out import part
from studies.smollm2.list_functions import TESTS
from studies.smollm2.tasks import Check, Task
from studies.smollm2.worked_solutions import value_of

KINDS = ("math+if", "code+if", "math+code")
#: Constraints that a right solution can follow.
_FITTING = {
    "math+if": ("starts", "title", "ends", "postscript", "lower", "quoted", "keyword"),
    "code+if": ("starts", "title", "ends", "postscript", "keyword"),
}


def with_constraint(kind: str, tasks: Sequence[Task], rng: random.Random) -> list[Task]:
    """Each word problem or function, with a constraint on the answer that holds it."""
    made = []
    for task in tasks:
        check, phrase = constraints.draw(rng.choice(_FITTING[kind]), rng)
        made.append(Task(f"{check.kind}+{task.id}", kind, f"{task.prompt} {phrase}", (*task.checks, check)))
    return made


def story_functions(held_out: bool, count: int, rng: random.Random) -> list[Task]:
    """A word problem with letters for numbers, to be answered by a function; some stories are for evaluation alone."""
    by_text = {story.text: story for story in stories.STORIES}
    chosen = [by_text[text] for text in part(list(by_text), held_out)]
    made: dict[str, Task] = {}
    for _ in range(50 * count):
        if len(made) == count:
            break
        task = _story_function(rng.choice(chosen), rng)
        made.setdefault(task.prompt, task)
    return list(made.values())


def _story_function(story: stories.Story, rng: random.Random) -> Task:
    letters = [letter for letter in "abc" if f"{{{letter}}}" in story.text]
    tests = []
    for _ in range(TESTS + 1):
        drawn, equation = stories.draw(story, rng)
        tests.append(([drawn[letter] for letter in letters], int(value_of(equation))))
    (numbers, answer), *others = tests
    text = stories.tell(story, {letter: letter for letter in "abc"}, rng)
    prompt = (
        f"Write a Python function `solve(numbers)` that answers this question, where numbers is the list "
        f"[{', '.join(letters)}]: {text} For example, solve({numbers}) returns {answer}."
    )
    check = Check("function", {"function": "solve", "tests": [list(test) for test in others]})
    return Task(f"story-function/{text}/{numbers}", "math+code", prompt, (check,))
