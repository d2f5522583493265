"""What a task is: a prompt, and checks that a response must all pass. Checks of two domains make a mixed task."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

DOMAINS = ("math", "code", "if")
#: What base and specialists are scored on.
SCORED = (*DOMAINS, "svamp")


@dataclass(frozen=True)
class Check:
    """A kind of check and what it needs to know, as JSON can hold it."""

    kind: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Task:
    """`solution` is a response that passes, where one is known: what supervised training shows."""

    id: str
    domain: str
    prompt: str
    checks: tuple[Check, ...]
    solution: str | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]


def number_task(name: str, prompt: str, answer: str, solution: str) -> Task:
    """A word problem whose answer is a number."""
    known = {"prompt": prompt, "answer": answer}
    return Task(id=name, domain="math", prompt=prompt, checks=(Check("number", known),), solution=solution)


def row_of(task: Task) -> dict[str, Any]:
    """As a file of prompts has it."""
    checks = [asdict(check) for check in task.checks]
    return {"id": task.id, "prompt": task.prompt, "domain": task.domain, "checks": checks}


def prompt_tokens(tokenizer: Any, task: Task) -> list[int]:
    text = tokenizer.apply_chat_template(task.messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def passes(task: Task, response: str) -> bool:
    return all(_checker(check.kind)(check.arguments, response) for check in task.checks)


def verdicts(tasks: Sequence[Task], responses: Sequence[str]) -> list[bool]:
    """Whether each response passes; side by side, since the sandbox waits for processes."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(passes, tasks, responses))


def _checker(kind: str) -> Callable[[dict[str, Any], str], bool]:
    from studies.smollm2 import constraints, list_functions, word_problems

    others: Mapping[str, Callable[[dict[str, Any], str], bool]] = {
        "number": word_problems.check,
        "function": list_functions.check,
    }
    return others.get(kind) or constraints.CHECKS[kind]
