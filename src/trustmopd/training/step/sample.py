"""Sample a batch: name its rollouts and their random numbers, let the engine answer, and put both together."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from trustmopd.prompts.views import PromptViews
from trustmopd.rollouts import Completion, Engine, Params
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.prompt_lengths import DRAW, ROW, SURPLUS
from trustmopd.training.step.batch import Batch, Rollout, RolloutId

#: Rollouts recorded per step.
RECORDED = 8

Examples = Sequence[Mapping[str, Any]]


def rows_of(inputs: Examples) -> list[int]:
    """The prompts' places in the dataset; an evaluation set has none, and they are numbered."""
    return [example.get(ROW, place) for place, example in enumerate(inputs)]


def rollouts_of(
    inputs: Examples,
    everyone: Sequence[Sequence[int]],
    args: TrustMOPDConfig,
    *,
    teachers: Sequence[str],
    views: PromptViews,
    step: int,
    process: int,
) -> list[Rollout]:
    """A rollout for each prompt of this process. `everyone` are the `rows_of` every process: together they number the
    responses to the same prompt, and choose those to record. `teachers` are those that labels may name, `views` those
    of policies that read other prompts."""
    ids = rollout_ids(row for rows in everyone for row in rows)
    recorded = recorded_draws(draw_of(each, seed=args.seed, step=step) for each in ids)
    ids = ids[sum(map(len, everyone[:process])) :][: len(inputs)]
    rollouts = []
    for place, (example, rollout_id) in enumerate(zip(inputs, ids, strict=True)):
        own, unnumbered = draw_of(rollout_id, seed=args.seed, step=step), f"{args.seed}/{step}/{process}.{place}"
        draw = example.get(DRAW) or (own if ROW in example else unnumbered)
        domain = _text(example.get(args.domain_column or ""))
        read = views.read(example, args.max_prompt_length, args.prompt_truncation)
        rollouts.append(
            Rollout(
                id=rollout_id,
                draw=draw,
                prompt=example["prompt"],
                prompt_id=_text(example.get("id")) or str(example.get(ROW)),
                domain=domain,
                capabilities=_texts(example.get("capabilities")),
                teacher=_teacher(domain, teachers) if args.rules.allocation.labelled else None,
                recorded=draw in recorded,
                read=read,
                shown={n: view.text(read[n]) for n, view in views.items() if draw in recorded and not view.view.prompt},
            )
        )
    return rollouts


def rollout_ids(rows: Iterable[int]) -> list[RolloutId]:
    """Number the responses to the same prompt, in this order."""
    seen: Counter[int] = Counter()
    ids = []
    for row in rows:
        ids.append(RolloutId(row, seen[row]))
        seen[row] += 1
    return ids


def draw_of(rollout: RolloutId, *, seed: int, step: int) -> str:
    """The name of a rollout's random numbers in training: neither a resume, nor TRL's shuffle, nor the number of
    processes changes it."""
    return "/".join(map(str, (seed, step, *(rollout if rollout.sample else rollout[:1]))))


def recorded_draws(draws: Iterable[str]) -> set[str]:
    """A random sample of a step's rollouts, independent of how they are split between processes."""
    return set(sorted(draws, key=lambda draw: hashlib.blake2b(draw.encode()).digest())[:RECORDED])


class Turns:
    """The engine's responses to one batch of prompts. With tools, a response takes several turns."""

    def __init__(self, engine: Engine, args: TrustMOPDConfig, rollouts: Sequence[Rollout], pad_token_id: int):
        self.engine = engine
        self.args = args
        self.draws = [rollout.draw for rollout in rollouts]
        self.pad_token_id = pad_token_id
        self.first: list[Completion] | None = None
        self.turn = 0

    def sample(self, prompt_ids: list[list[int]]) -> list[list[int]]:
        self.turn += 1
        if self.turn > 1:  # some rows again, after their tools ran; TRL accepts empty completions here
            draws = [f"{self.draws[0]}, turn {self.turn}, place {place}" for place in range(len(prompt_ids))]
            return [made.ids for made in self.engine.sample(prompt_ids, rollout_params(self.args, draws))]
        self.first = self.engine.sample(prompt_ids, rollout_params(self.args, self.draws))
        # TRL reads the last token of every completion. An empty one gets a padding token, which `sampled` masks.
        return [made.ids or [self.pad_token_id] for made in self.first]

    @contextmanager
    def current(self) -> Iterator[None]:
        """Inside, `next_turn` is one of these: TRL asks for a turn with token ids alone."""
        token = _turns.set(self)
        try:
            yield
        finally:
            _turns.reset(token)


_turns: ContextVar[Turns] = ContextVar("turns")


def next_turn(prompt_ids: list[list[int]]) -> list[list[int]]:
    return _turns.get().sample(prompt_ids)


def rollout_params(args: TrustMOPDConfig, draws: Sequence[str]) -> Params:
    """transformers draws from torch's generator, whose state is in the checkpoints. vLLM gets a seed for each of
    `draws`."""
    assert args.max_completion_length is not None
    return Params(
        max_new_tokens=args.max_completion_length,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        draws=draws if args.rules.rollouts.beside else None,
        logprobs=args.rules.rollouts.beside,
        options=args.generation_kwargs or {},
    )


def sampled(
    generated: Mapping[str, Any], inputs: Examples, rollouts: Sequence[Rollout], turns: Turns, *, with_logp: bool
) -> Batch:
    """The batch of what TRL `generated`. A response without tokens and one that only fills up the batch are masked."""
    made = turns.first or []
    empty = [row for row, completion in enumerate(made) if not completion.ids]
    surplus = [row for row, example in enumerate(inputs) if example.get(SURPLUS)]
    generated["completion_mask"][[*empty, *surplus]] = 0
    engine_logp = padded_logprobs(made, generated["completion_ids"]) if with_logp else None
    return Batch.of(generated, rollouts, engine_logp=engine_logp)


def padded_logprobs(made: Sequence[Completion], response_ids: Tensor) -> Tensor:
    """The engine's log-probabilities, padded with 0 to the shape of the responses."""
    logp = torch.zeros(response_ids.shape)
    for row, completion in enumerate(made):
        logp[row, : len(completion.ids)] = torch.tensor(completion.logprobs)
    return logp.to(response_ids.device)


def _teacher(label: str | None, teachers: Sequence[str]) -> int:
    if label not in teachers:
        raise ValueError(f"label {label!r} is not the name of a teacher ({', '.join(teachers)}). Relabel the prompt.")
    return teachers.index(label)


def _text(label: Any) -> str | None:
    return None if label is None else str(label)


def _texts(labels: Any) -> list[str] | None:
    if labels is None:
        return None
    return [str(label) for label in labels] if isinstance(labels, (list, tuple)) else [str(labels)]
