"""One sampled answer a prompt, verified."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import torch

from trustmopd.testbed.tasks import Task
from trustmopd.testbed.verify import Verdict, verify

MAX_NEW_TOKENS = 24


@dataclass(frozen=True)
class SampledScores:
    tasks: Sequence[Task]
    answers: Sequence[str]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        return [verify(task, answer) for task, answer in zip(self.tasks, self.answers, strict=True)]

    @property
    def mean(self) -> float:
        """The share of right answers."""
        return sum(verdict.right for verdict in self.verdicts) / len(self.verdicts)

    @property
    def understood(self) -> float:
        """The share that is right but for systematic mistakes: what the mistakes, once unlearnt, leave to be had."""
        return sum(
            answer.rstrip() in _with_any_mistakes(task) for task, answer in zip(self.tasks, self.answers, strict=True)
        ) / len(self.tasks)


@torch.no_grad()
def sample_scores(
    model: Any, tokenizer: Any, tasks: Sequence[Task], *, temperature: float = 0.6, seed: int = 0, batch_size: int = 500
) -> SampledScores:
    """Sample an answer to each task. The same seed, model and batch size give the same answers on the same machine;
    neither the caller's random state nor the model's mode is changed."""
    if not tasks:
        raise ValueError("there are no tasks to sample answers for.")
    device = model.device
    training = model.training
    model.eval()
    answers: list[str] = []
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for start in range(0, len(tasks), batch_size):
                prompts = [[{"role": "user", "content": task.prompt}] for task in tasks[start : start + batch_size]]
                inputs = tokenizer.apply_chat_template(
                    prompts,
                    add_generation_prompt=True,
                    tokenize=True,
                    padding=True,
                    padding_side="left",
                    return_dict=True,
                    return_tensors="pt",
                ).to(device)
                output = model.generate(
                    **inputs,
                    do_sample=True,
                    temperature=temperature,
                    top_k=0,
                    top_p=1.0,
                    max_new_tokens=MAX_NEW_TOKENS,
                    pad_token_id=tokenizer.pad_token_id,
                    eos_token_id=tokenizer.eos_token_id,
                )
                answers += tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    finally:
        model.train(training)
    return SampledScores(tasks, answers)


def _with_any_mistakes(task: Task) -> set[str]:
    needed = task.capabilities
    return {task.answer(wrong) for size in range(len(needed) + 1) for wrong in combinations(needed, size)}
