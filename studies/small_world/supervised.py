"""The reference: a mixed-domain model by supervised training on answers with systematic mistakes."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm

from studies.small_world.models import SHIPPED_SIZE, Size, make_model, make_tokenizer
from trustmopd.quickstart.prompts import draw
from trustmopd.quickstart.tasks import DOMAINS, MIXTURES, Task

_IGNORED = -100


@dataclass(frozen=True)
class Supervision:
    """How the reference is trained. Batches are drawn evenly from the three domains and the three mixtures."""

    steps: int = 3000  # at 1,500 it knows 94% of the sums, at 3,000 all of them
    batch_size: int = 512
    learning_rate: float = 2e-3
    warmup_steps: int = 50
    adam_beta2: float = 0.95
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    mistake_rate: float = 0.6

    def warm_cosine(self, step: int) -> float:
        warm = min(self.warmup_steps, self.steps // 10)
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm)))


SHIPPED_SUPERVISION = Supervision()


def build_reference(
    out: Path, seed: int, settings: Supervision, size: Size = SHIPPED_SIZE, *, device: str = "cpu"
) -> dict[str, Any]:
    """Train the reference, save it with its tokenizer in `out`, and return what was measured."""
    model = make_model(seed, size).to(device)
    losses = fit(model, settings, settings.warm_cosine, f"reference/{seed}")
    model.eval().save_pretrained(out)
    make_tokenizer().save_pretrained(out)
    return {"steps": settings.steps, "parameters": model.num_parameters(), "losses": losses}


def fit(model: Any, settings: Supervision, rate: Callable[[int], float], draws: str) -> list[dict[str, Any]]:
    """Train in place; `rate` is the share of the learning rate at a step, `draws` the name of the random draws.

    Not by TRL's SFTTrainer, whose dataset would fix the answers: here prompts and mistakes are drawn again at every
    step, so a prompt seen twice may have two answers, and the model learns how frequent each is.
    """
    tokenizer = make_tokenizer()
    # float32: at this size kernel launches limit a step, and autocast only adds to them.
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, betas=(0.9, settings.adam_beta2), weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses = []
    every = max(1, settings.steps // 60)
    model.train()
    with tqdm(total=settings.steps, desc="reference", unit="step") as bar:
        for step in range(settings.steps):
            ids, labels = _batch(tokenizer, settings, random.Random(f"{draws}/{step}"))
            logits = model(input_ids=ids.to(model.device)).logits[:, :-1]
            loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten().to(model.device), ignore_index=_IGNORED)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            schedule.step()
            if step % every == 0 or step == settings.steps - 1:
                losses.append({"step": step + 1, "loss": round(loss.item(), 4)})
                bar.set_postfix(loss=losses[-1]["loss"])
            bar.update()
    return losses


def draw_mistakes(task: Task, rng: random.Random, rate: float) -> frozenset[str]:
    """The capabilities that the reference's training answer gets wrong, each independently of the others.

    Mistakes are systematic and in most answers: a random mistake spreads over many tokens, and sampling below
    temperature 1 would nearly remove it. This one is the likeliest token, and such sampling sharpens it.
    """
    return frozenset(name for name in task.capabilities if rng.random() < rate)


def _batch(tokenizer: Any, settings: Supervision, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, padded on the right (causal attention then needs no mask), and labels on the answer and its EOS."""
    before, after = tokenizer.apply_chat_template(
        [{"role": "user", "content": "|"}], add_generation_prompt=True, tokenize=False
    ).split("|")
    kinds = (*DOMAINS, *MIXTURES)
    tasks = [draw(kinds[row % len(kinds)], rng, "train") for row in range(settings.batch_size)]
    prompts = [before + task.prompt + after for task in tasks]
    answers = [task.answer(draw_mistakes(task, rng, settings.mistake_rate)) for task in tasks]
    rows = tokenizer(
        [prompt + answer + tokenizer.eos_token for prompt, answer in zip(prompts, answers, strict=True)],
        add_special_tokens=False,
    )["input_ids"]
    width = max(len(row) for row in rows)
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
    ends = torch.tensor([[len(row)] for row in rows])
    starts = ends - torch.tensor([[len(answer) + 1] for answer in answers])  # one token a character, and the EOS
    place = torch.arange(width)
    return ids, torch.where((place >= starts) & (place < ends), ids, _IGNORED)
