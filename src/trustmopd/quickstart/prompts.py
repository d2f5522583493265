"""Prompts from seeds: disjoint splits, and the two prompt sets of the paper in small."""

import random
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

from trustmopd.quickstart.tasks import DOMAINS, FORMS, FUNCTIONS, MIXTURES, ON_DIGITS, Task, parse

if TYPE_CHECKING:
    from datasets import Dataset

Split = Literal["train", "evaluation"]

MAX_PROMPT = 24
MAX_ANSWER = 12
MAX_NEW_TOKENS = 24
_MAX_REPEATS = 3000
_MAX_OUTPUT = 8  # letters a program writes: longer ones only cost time
_SINGLE_SHARE = 0.28  # of MultiCap's prompts
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def prompt_split(prompt: str) -> Split:
    """A function of the text alone, so no prompt is in both splits, whatever the seed."""
    digest = blake2b(prompt.encode(), digest_size=8).digest()
    return "evaluation" if int.from_bytes(digest, "big") % 5 == 0 else "train"


def draw(kind: str, rng: random.Random, split: Split) -> Task:
    """A prompt of a domain or of a mixture such as `math+if`."""
    while True:
        prompt = _text(kind, rng)
        if len(prompt) > MAX_PROMPT or prompt_split(prompt) != split:
            continue
        task = parse(prompt)
        output = task.run(task.value())
        if len(output) > _MAX_OUTPUT or len(task.answer()) > MAX_ANSWER:
            continue
        if "code" in task.capabilities and output.endswith("x"):
            continue  # the systematic mistake would be the right answer
        if kind == "math+code" and len(task.value()) < 2:
            continue  # both mistakes would fall on one character
        return task


def draw_distinct(kind: str, count: int, rng: random.Random, split: Split) -> list[Task]:
    """`count` different prompts."""
    tasks: dict[str, Task] = {}
    repeats = 0
    while len(tasks) < count:
        task = draw(kind, rng, split)
        repeats = repeats + 1 if task.prompt in tasks else 0
        tasks[task.prompt] = task
        if repeats == _MAX_REPEATS:
            raise ValueError(
                f"{count} different {split} prompts of kind {kind!r} were asked for, and only {len(tasks)} were found: "
                f"the next {repeats} draws gave none that is new. Ask for fewer."
            )
    return list(tasks.values())


def prompt_set(name: str, count: int, seed: int) -> "Dataset":
    """Train prompts: `singlecap` (a third from each domain) or `multicap` (28% single, 72% mixtures, each balanced)."""
    from datasets import Dataset

    if name not in ("singlecap", "multicap"):
        raise ValueError(f"unknown prompt set {name!r}: choose 'singlecap' or 'multicap'.")
    if count < 1:
        raise ValueError(f"a prompt set of {count} prompts is empty: ask for at least one.")
    single = count if name == "singlecap" else round(_SINGLE_SHARE * count)
    rng = random.Random(f"{name}/{seed}")
    tasks = [
        task
        for kinds, total in ((DOMAINS, single), (MIXTURES, count - single))
        for kind, share in zip(kinds, _even(total, len(kinds)), strict=True)
        for task in draw_distinct(kind, share, rng, "train")
    ]
    rng.shuffle(tasks)
    return Dataset.from_list([record(task) for task in tasks])


def evaluation_set(kind: str, count: int) -> list[Task]:
    """The same evaluation prompts of a domain (or mixture) every time; a smaller count gives the first of them."""
    return draw_distinct(kind, count, random.Random(f"evaluation/{kind}"), "evaluation")


def record(task: Task) -> dict[str, object]:
    """A row of a prompt set."""
    return {
        "id": task.id,
        "prompt": [{"role": "user", "content": task.prompt}],
        "domain": task.domain,
        "capabilities": list(task.capabilities),
        "source": "testbed",
    }


def _text(kind: str, rng: random.Random) -> str:
    if kind == "math":
        return _sum(rng)
    if kind == "code":
        return _program(rng)
    if kind == "math+code":
        return f"{rng.choice(ON_DIGITS)}({_sum(rng)})"
    form = rng.choice(list(FORMS))
    if kind == "if":
        return f"{form}:{_word(rng, 3, 5)}"
    if kind == "math+if":
        return f"{form}:{_sum(rng)}"
    if kind == "code+if":
        return f"{form}:{_program(rng)}"
    raise ValueError(f"unknown kind of prompt {kind!r}: choose one of {', '.join((*DOMAINS, *MIXTURES))}.")


def _sum(rng: random.Random) -> str:
    left, right = rng.randint(10, 99), rng.randint(10, 99)
    return f"{left}+{right}" if rng.random() < 0.5 else f"{max(left, right)}-{min(left, right)}"


def _program(rng: random.Random) -> str:
    names = list(FUNCTIONS)
    if rng.random() < 0.5:
        return f"{rng.choice(names)}({_word(rng, 3, 6)})"
    return f"{rng.choice(names)}({rng.choice(names)}({_word(rng, 3, 4)}))"


def _word(rng: random.Random, shortest: int, longest: int) -> str:
    return "".join(rng.choices(_LETTERS, k=rng.randint(shortest, longest)))


def _even(total: int, parts: int) -> Sequence[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]
