"""The tasks of each domain: what supervised training shows, what RL asks, what is kept for evaluation."""

import random
from collections.abc import Mapping

from trustmopd.smollm2 import constraints, functions, stories, word_problems
from trustmopd.smollm2.settings import Base
from trustmopd.smollm2.tasks import Task, passes

#: Prompts that RL draws from, for a domain; of mathematics, a third each are SVAMP's, GSM8K's and our own.
POOL = 3000

Data = Mapping[str, str]


def demonstrations(settings: Base, data: Data, seed: int) -> list[Task]:
    """Tasks whose solutions the base is trained on, each solution a right one, in random order."""
    rng = random.Random(f"demonstrations/{seed}")
    chosen = [
        *_some(word_problems.svamp(False, data.get("svamp")), settings.svamp, seed),
        *_some(word_problems.gsm8k(data.get("gsm8k"), settings.gsm8k_steps), settings.gsm8k, seed),
        *stories.tasks(settings.stories, rng),
        *functions.tasks(False, settings.functions, rng),
    ]
    right = [task for task in chosen if task.solution is not None and passes(task, task.solution)]
    rng.shuffle(right)
    return right


def training_tasks(domain: str, settings: Base, data: Data, seed: int) -> list[Task]:
    """Prompts of RL, in random order; no word problem that the base has seen solved."""
    rng = random.Random(f"reinforcement/{domain}/{seed}")
    if domain == "code":
        tasks = functions.tasks(False, POOL, rng)
    elif domain == "if":
        tasks = constraints.tasks(False, POOL, rng)
    else:
        svamp = word_problems.svamp(False, data.get("svamp"))
        gsm8k = word_problems.gsm8k(data.get("gsm8k"), 2)
        shown = {task.id for task in demonstrations(settings, data, seed)}
        fresh = [task for task in svamp if task.id not in shown]
        repeated = [fresh[number % len(fresh)] for number in range(POOL // 3)] if fresh else []
        easy = [task for task in gsm8k if task.id not in shown][: POOL // 3]
        tasks = [*repeated, *easy, *stories.tasks(POOL - len(repeated) - len(easy), rng)]
    rng.shuffle(tasks)
    return tasks


def evaluation_tasks(domain: str, count: int, data: Data) -> list[Task]:
    """The same for every seed: none of their problems, compositions, topics or pairs of constraints is trained on."""
    rng = random.Random(f"evaluation/{domain}")
    if domain == "code":
        return functions.tasks(True, count, rng)
    if domain == "if":
        return constraints.tasks(True, count, rng)
    return word_problems.svamp(True, data.get("svamp"))[:count]


def _some(tasks: list[Task], count: int, seed: int) -> list[Task]:
    return random.Random(seed).sample(tasks, min(count, len(tasks)))
