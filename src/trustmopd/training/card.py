"""The model card beside a run's checkpoints: from whom the student learnt, how, and what to state before publishing."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import ModelCardData

from trustmopd.rules import RULES
from trustmopd.teachers import REFERENCE
from trustmopd.training.config import rule_name

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer

_TEXT = """---
{data}
---

# {name}

A student distilled from {count} with trustmopd: on its own responses, {how}.

| role | checkpoint | mu |
|---|---|---|
{rows}

{prompts} prompts, {batch} a step, {steps} steps planned, learning rate {rate:g}, responses of up to {longest} tokens
at temperature {temperature:g}, {candidates} candidates a token. Each `checkpoint-*` is a whole {kind}; its
`manifest.json` has every setting, version and fingerprint.

**Licence.** A student inherits the terms of its base, its teachers and its prompts: state them here, and as `license`
above, before publishing. (Every checkpoint writes this file anew: edit a copy.)

**Method.** *{paper}*. Trained with [TRL](https://github.com/huggingface/trl).
"""


def model_card(trainer: "TrustMOPDTrainer", name: str | None, dataset: str | None, tags: Iterable[str]) -> str:
    args, student = trainer.args, trainer.student_source
    mu = trainer.calibration.mu if trainer.calibration else {}
    teachers = list(trainer.pool.teachers)
    adapter = hasattr(trainer.model, "peft_config")
    rows = [("student at the start", student, "")]
    if REFERENCE in trainer.pool.members and (reference := trainer.pool.members[REFERENCE].source) != student:
        rows.append(("reference", reference, ""))
    rows += [(f"teacher `{name}`", trainer.teachers[name].source, f"{mu[name]:.4g}" if mu else "") for name in teachers]
    data = ModelCardData(
        base_model=None if Path(student).exists() or "/" not in student else student,
        datasets=dataset,
        library_name="peft" if adapter else "transformers",
        tags=sorted({*tags, *trainer._tag_names}),
    )
    return _TEXT.format(
        data=data.to_yaml(),
        name=name or "Student",
        count="one teacher" if len(teachers) == 1 else f"{len(teachers)} teachers",
        how=_how(trainer),
        rows="\n".join(f"| {' | '.join(row)} |" for row in rows),
        prompts=len(trainer.train_dataset),
        batch=args.global_batch_size,
        steps=trainer.state.max_steps,
        rate=args.learning_rate,
        longest=args.max_completion_length,
        temperature=args.temperature,
        candidates=args.num_candidates,
        kind="LoRA adapter" if adapter else "model",
        paper=trainer._paper["title"],
    )


def _how(trainer: "TrustMOPDTrainer") -> str:
    """What the student is pulled towards, in a clause."""
    args = trainer.args
    if callable(args.allocation):
        return f"towards its teachers, weighted by `{rule_name(args.allocation)}`"
    habit = " relative to its habit, mu," if args.calibrates else ""
    each = {"token": "token by token", "response": "response by response"}[args.granularity]
    how = f"{each} by its {rule_name(args.score).replace('_', ' ')}{habit} to the power of {args.gamma:g}"
    return RULES[args.allocation].phrase.format(how=how, teacher=args.single_teacher)
