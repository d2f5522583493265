"""Real training steps on fixed rollouts, and what those steps should compute, written out plainly.

A replayed run is `trainer.train()` in which generation alone is replaced: each prompt has one response, whatever the
split of the batch, the sampling options or the process that asks. Everything behind generation is the trainer's own.
"""

import copy
import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tiny
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback
from trl import DistillationTrainer

from trustmopd import TrustMOPDConfig, TrustMOPDTrainer
from trustmopd.rollouts import Completion, Params

# Every run begins with a collection of garbage. Without this, each goes through the million objects that imports left.
gc.freeze()

EOS = 2
LONGEST = 12
#: Response lengths by row: an EOS alone in row 1, a truncated response in row 2, none at all in row 5.
LENGTHS = (5, 1, LONGEST, 3, 8, 0, 9, 6)
CANDIDATES = 16
TEACHERS = ("math", "code", "if")
#: The allocation rules, as options of a run.
RULES: dict[str, dict[str, Any]] = {
    "trust": {"allocation": "trust"},
    "response_level": {"allocation": "trust", "granularity": "response"},
    "random": {"allocation": "random"},
    "routed": {"allocation": "routed"},
    "uniform": {"allocation": "uniform"},
    "single": {"allocation": "single", "single_teacher": "code"},
}
#: Logged means over the response tokens of the global batch: they must not depend on its split.
TOKEN_METRICS = ("weight/", "score/", "agreement/", "candidates/")
#: One step in float32 on the CPU, unclipped. SGD, so that the next step is as close as the gradients are.
OPTIONS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_completion_length": LONGEST,
    "max_steps": 1,
    "max_grad_norm": 0.0,
    "optim": "sgd",
    "learning_rate": 0.1,
    "warmup_steps": 0,
    "save_strategy": "no",
    "logging_steps": 1,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}


# ---- Rollouts


def prompt_ids(count: int) -> list[list[int]]:
    rendered = tiny.tokenizer().apply_chat_template(
        list(tiny.prompts(count)["prompt"]), add_generation_prompt=True, tokenize=True, return_dict=True
    )
    return rendered["input_ids"]


def responses(lengths: Sequence[int]) -> list[list[int]]:
    """By row: random text that ends with EOS, unless it has the longest length."""
    generator = torch.Generator().manual_seed(7)
    text = torch.randint(4, tiny.VOCAB, (len(lengths), LONGEST), generator=generator).tolist()
    return [
        ids[:length] if length in (0, LONGEST) else [*ids[: length - 1], EOS]
        for ids, length in zip(text, lengths, strict=True)
    ]


class Replay(DistillationTrainer):
    """TRL's trainer without generation. It keeps the loss of every micro-batch."""

    def replay(self, lengths: Sequence[int]) -> None:
        prompts = (tuple(ids) for ids in prompt_ids(len(lengths)))
        self.completions = dict(zip(prompts, responses(lengths), strict=True))
        self.losses: list[float] = []

    def _generate_single_turn(self, prompt_ids: list, *args: Any, **kwargs: Any) -> list[list[int]]:
        return [list(self.completions[tuple(ids)]) for ids in prompt_ids]

    def compute_loss(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().compute_loss(*args, **kwargs)
        self.losses.append(loss.item())
        return loss


class ReplayedTrainer(TrustMOPDTrainer, Replay):
    """`TrustMOPDTrainer` over `Replay`, which is its engine: what the former does with generated ids is still done."""

    def replay(self, lengths: Sequence[int]) -> None:
        super().replay(lengths)
        self.rollout_engine = self

    def sample(self, prompt_ids: Sequence[list[int]], params: Params) -> list[Completion]:
        return [Completion(ids, False) for ids in Replay._generate_single_turn(self, list(prompt_ids))]


# ---- Runs


class Gradients(TrainerCallback):
    """The gradient of every step. Clipping would come before, and is off."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, *, model: nn.Module, **kwargs: Any) -> None:
        named = ((name.removeprefix("module."), parameter.grad) for name, parameter in model.named_parameters())
        self.steps.append({name: gradient.clone() for name, gradient in named if gradient is not None})


@dataclass
class Run:
    """What training left: gradients and logged metrics by step, losses by micro-batch."""

    trainer: Any
    gradients: list[dict[str, Tensor]]
    logs: list[dict[str, float]]
    losses: list[float]

    @property
    def gradient(self) -> dict[str, Tensor]:
        return self.gradients[0]

    @property
    def loss(self) -> float:
        """Of the first step, as logged."""
        return self.logs[0]["loss"]

    def token_metrics(self, step: int = 0) -> dict[str, float]:
        return {name: value for name, value in self.logs[step].items() if name.startswith(TOKEN_METRICS)}


def specialists() -> dict[str, PreTrainedModel]:
    return {name: tiny.specialist(tiny.model(), seed) for seed, name in enumerate(TEACHERS, 1)}


def prompts(lengths: Sequence[int] = LENGTHS) -> Dataset:
    return tiny.prompts(len(lengths))


def trainer_of(
    folder: Path,
    *,
    student: Any = None,
    teachers: Mapping[str, Any] | None = None,
    reference: Any = None,
    peft_config: Any = None,
    lengths: Sequence[int] = LENGTHS,
    dataset: Dataset | None = None,
    **options: Any,
) -> ReplayedTrainer:
    ours = {"num_candidates": CANDIDATES, "calibration_batches": 1, "record_allocation_every": 0}
    trainer = ReplayedTrainer(
        model=tiny.model() if student is None else student,
        teachers=specialists() if teachers is None else teachers,
        reference=reference,
        args=TrustMOPDConfig(output_dir=str(folder), **OPTIONS | ours | options),
        train_dataset=dataset or prompts(lengths),
        processing_class=tiny.tokenizer(),
        peft_config=peft_config,
    )
    trainer.replay(lengths)
    return trainer


def trained(trainer: Replay) -> Run:
    gradients = Gradients()
    trainer.add_callback(gradients)
    trainer.train()
    logs = [line for line in trainer.state.log_history if "loss" in line]
    return Run(trainer, gradients.steps, logs, trainer.losses)


def run(folder: Path, **options: Any) -> Run:
    return trained(trainer_of(folder, **options))


def calibration_file(folder: Path, **options: Any) -> str:
    """A calibration for `run`, with mu moved by teacher: measured on the rollouts of the step itself, it would make
    every mean calibrated score 1, and a mistake in them hard to see."""
    measured = trainer_of(folder, **options).calibrate()
    assert measured is not None
    moved = {name: mu * factor for (name, mu), factor in zip(measured.mu.items(), (0.9, 1.1, 1.3), strict=True)}
    return str(replace(measured, mu=moved).save(folder / "moved.json"))


def difference(gradient: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Largest deviation of an entry, relative to the largest entry in the gradient of the same parameter."""
    assert gradient.keys() == other.keys() and gradient
    return max(
        float((gradient[name] - other[name]).abs().max() / gradient[name].abs().max().clamp_min(1e-9))
        for name in gradient
    )


# ---- The objective from full logits, one unpadded response at a time, in float64


@dataclass(frozen=True)
class PlainResponse:
    """Log-probabilities on the student's candidates: ``[T, C]``, teachers and references ``[K, T, C]``."""

    row: int
    student_logp: Tensor
    teacher_logp: Tensor
    reference_logp: Tensor
    candidate_ids: Tensor
    sampled_ids: Tensor


@dataclass(frozen=True)
class Plain:
    loss: float
    gradient: dict[str, Tensor]


#: Weights ``[K, T]`` of one response from its scores over mu.
PlainRule = Callable[[PlainResponse, Tensor], Tensor]


def plain_trust(gamma: float = 7.0) -> PlainRule:
    return lambda at, calibrated: calibrated**gamma / (calibrated**gamma).sum(dim=0)


def plain_displacement(at: PlainResponse) -> Tensor:
    log_ratio = at.teacher_logp - at.reference_logp
    return (log_ratio - log_ratio.mean(dim=-1, keepdim=True)).square().sum(dim=-1).sqrt()


def plain_objective(
    student: PreTrainedModel,
    teachers: Sequence[PreTrainedModel],
    rule: PlainRule,
    score: Callable[[PlainResponse], Tensor] = plain_displacement,
    *,
    references: Sequence[PreTrainedModel] | None = None,
    views: Sequence[Sequence[list[int]] | None] | None = None,
    lengths: Sequence[int] = LENGTHS,
    candidates: int = CANDIDATES,
    temperature: float = 1.0,
) -> Plain:
    """One step's loss and gradient. Each teacher has its reference, by default the student; mu is the token mean of
    these responses' scores. `views` are the prompts of each reference, then of each teacher, where it reads others."""
    references = [copy.deepcopy(model).double() for model in references or [student] * len(teachers)]
    student = copy.deepcopy(student).double()
    teachers = [copy.deepcopy(teacher).double() for teacher in teachers]
    asked = []
    for row, (prompt, response) in enumerate(zip(prompt_ids(len(lengths)), responses(lengths), strict=True)):
        if not response:
            continue

        def logits_of(
            model: PreTrainedModel,
            view: Any = None,
            row: int = row,
            own: list[int] = prompt,
            response: list[int] = response,
        ) -> Tensor:
            prompt = own if view is None else view[row]
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
            return logits[:, : tiny.VOCAB] / temperature

        ids = logits_of(student).topk(candidates).indices
        student_logp, *frozen = (
            logits_of(model, view).gather(-1, ids).log_softmax(dim=-1)
            for model, view in zip(
                (student, *references, *teachers), (None, *(views or [None] * 2 * len(teachers))), strict=True
            )
        )
        reference_logp, teacher_logp = frozen[: len(references)], frozen[len(references) :]
        asked.append(
            PlainResponse(
                row,
                student_logp,
                torch.stack(teacher_logp).detach(),
                torch.stack(reference_logp).detach(),
                ids,
                torch.tensor(response),
            )
        )
    scores = [score(at).detach() for at in asked]
    mu = torch.cat(scores, dim=1).mean(dim=1, keepdim=True)
    losses = []
    for at, rho in zip(asked, scores, strict=True):
        weights = rule(at, rho / mu)
        target_logp = (weights.unsqueeze(-1) * at.teacher_logp).sum(dim=0).log_softmax(dim=-1)
        token_loss = (at.student_logp.exp() * (at.student_logp - target_logp)).sum(dim=-1)
        losses.append(token_loss.mean())
    loss = torch.stack(losses).mean()
    loss.backward()
    return Plain(loss.item(), {name: p.grad.float() for name, p in student.named_parameters()})
