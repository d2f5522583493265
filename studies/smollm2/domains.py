"""The tasks of each domain: what supervised training shows, what RL asks, what is kept for evaluation."""

import random
from collections.abc import Callable, Mapping
from itertools import islice

from studies.smollm2 import constraints, list_functions, mixed, renumbered, stories, word_problems
from studies.smollm2.settings import Base
from studies.smollm2.tasks import Task, passes
from trustmopd.evaluation.benchmark import Row

Data = Mapping[str, str]


def demonstrations(settings: Base, data: Data, seed: int) -> list[Task]:
    """Tasks whose solutions the base is trained on, each solution a right one, in random order."""
    rng = random.Random(f"demonstrations/{seed}")
    rows, _, known = _svamp_halves(settings, data, seed)
    chosen = [
        *word_problems.svamp(rows),
        *renumbered.renumbered(rows, settings.renumbered, rng, known),
        *renumbered.sums(settings.sums, rng),
        *_some(word_problems.gsm8k(data.get("gsm8k"), settings.gsm8k_steps), settings.gsm8k, seed),
        *stories.tasks(settings.stories, rng),
        *list_functions.tasks(False, settings.functions, rng),
        *constraints.solved_tasks(settings.formats, rng),
    ]
    right = [task for task in chosen if _is_right(task)]
    rng.shuffle(right)
    return right


def training_tasks(domain: str, count: int, settings: Base, data: Data, seed: int) -> list[Task]:
    """Prompts of RL, in random order; no problem of mathematics that the base has seen solved: three tenths are sums, a
    quarter SVAMP's problems with other numbers, and most of the others stories."""
    rng = random.Random(f"reinforcement/{domain}/{seed}")
    if domain == "code":
        tasks = list_functions.tasks(False, count, rng)
    elif domain == "if":
        tasks = constraints.tasks(False, count, rng)
    elif domain in mixed.KINDS:
        tasks = _mixed(domain, False, count, lambda first: training_tasks(first, count, settings, data, seed), rng)
    else:
        _, rows, known = _svamp_halves(settings, data, seed)
        shown = {task.id for task in demonstrations(settings, data, seed)}
        tasks = [
            *word_problems.svamp(rows),
            *renumbered.renumbered(rows, count // 4, rng, known),
            *(task for task in renumbered.sums(3 * count // 10, rng) if task.id not in shown),
        ]
        unseen = (task for task in stories.tasks(count, rng) if task.id not in shown)
        tasks += islice(unseen, max(0, count - len(tasks)))
    rng.shuffle(tasks)
    return tasks


def evaluation_tasks(domain: str, count: int, data: Data) -> list[Task]:
    """The same for every seed: none of their problems, compositions, topics or pairs of constraints is trained on.
    `svamp` is not a domain, but mathematics told by others."""
    rng = random.Random(f"evaluation/{domain}")
    if domain == "code":
        return list_functions.tasks(True, count, rng)
    if domain == "if":
        return constraints.tasks(True, count, rng)
    if domain in mixed.KINDS:
        return _mixed(domain, True, count, lambda first: evaluation_tasks(first, count, data), rng)
    if domain == "svamp":
        return word_problems.svamp(word_problems.svamp_rows(True, data.get("svamp")))[:count]
    return stories.tasks(count, rng, held_out=True)


def _is_right(task: Task) -> bool:
    """Whether its solution passes. A function's does: its tests are made from it, and running it needs the sandbox."""
    return task.domain == "code" or (task.solution is not None and passes(task, task.solution))


def _mixed(kind: str, held_out: bool, count: int, first: Callable[[str], list[Task]], rng: random.Random) -> list[Task]:
    if kind == "math+code":
        return mixed.story_functions(held_out, count, rng)
    problems = [task for task in first(kind.partition("+")[0]) if not task.id.startswith("sum/")]
    return mixed.with_constraint(kind, problems, rng)


def _svamp_halves(settings: Base, data: Data, seed: int) -> tuple[list[Row], list[Row], set[str]]:
    """SVAMP's train problems: those that supervised training shows, with other numbers too, and those that RL asks;
    and the prompts of all its problems, of which no other numbers may make another."""
    rows = word_problems.svamp_rows(False, data.get("svamp"))
    known = {str(row["prompt"]) for row in [*rows, *word_problems.svamp_rows(True, data.get("svamp"))]}
    random.Random(seed).shuffle(rows)
    return rows[: settings.svamp], rows[settings.svamp :], known


def _some(tasks: list[Task], count: int, seed: int) -> list[Task]:
    return random.Random(seed).sample(tasks, min(count, len(tasks)))
