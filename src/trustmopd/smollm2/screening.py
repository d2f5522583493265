"""Prompts worth asking in RL: those that the base solves sometimes. If all samples of a prompt get the same reward, it
teaches nothing."""

from collections.abc import Sequence
from pathlib import Path

from trustmopd.files import read_json, write_json
from trustmopd.smollm2.policy_scores import Sampler
from trustmopd.smollm2.restarts import release
from trustmopd.smollm2.settings import Settings
from trustmopd.smollm2.tasks import Task, prompt_tokens, verdicts

_BATCH = 1000


def sometimes_solved(domain: str, base: Path, tasks: Sequence[Task], settings: Settings, path: Path) -> list[Task]:
    """The tasks of which the base passes some samples and not all, at RL's temperature. How often it passed each is
    kept in `path`, and read from there next time."""
    how = settings.of_specialist(domain)
    if not path.is_file():
        scoring = settings.scoring.model_copy(update={"temperature": 1.0, "batch_size": min(_BATCH, len(tasks))})
        sampled = settings.model_copy(update={"max_new_tokens": how.max_new_tokens, "scoring": scoring})
        sampler = Sampler(base, sampled, [])
        short = [task for task in tasks if len(prompt_tokens(sampler.tokenizer, task)) <= settings.max_prompt_tokens]
        repeated = [task for task in short for _ in range(how.screen_samples)]
        passed = dict.fromkeys((task.id for task in short), 0)
        for task, right in zip(repeated, verdicts(repeated, sampler.sample(repeated, seed=0)), strict=True):
            passed[task.id] += right
        write_json(path, {"samples": how.screen_samples, "passed": passed})
        del sampler
        release()
    found = read_json(path, what="screening", remedy="Remove it: the prompts are then screened again.")
    kept = [task for task in tasks if 0 < found["passed"].get(task.id, 0) < found["samples"]]
    right = sum(found["passed"].values()) / (len(found["passed"]) * found["samples"])
    print(f"{domain}: the base solves {right:.0%}; {len(kept)} of {len(tasks)} prompts sometimes.", flush=True)
    if len(kept) < how.prompts_per_step:
        raise ValueError(
            f"{domain}: the base solves only {len(kept)} prompts sometimes, and a step asks {how.prompts_per_step}. "
            "Ask easier ones, or switch the screening off: specialist_math.screen_samples=0."
        )
    return kept
