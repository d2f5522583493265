"""The model card beside a run's checkpoints: who taught the student, how, and what to add before publishing."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from huggingface_hub import ModelCardData

from trustmopd.recipe.rules import Scored
from trustmopd.runs.card_results import USAGE
from trustmopd.runs.layout import CHECKPOINT, MANIFEST
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.run.identity import RunIdentity

#: As TRL's trainers have it.
PAPER = {
    "title": "Distill What You Trust: Reliability-Aware Multi-Teacher On-Policy Distillation",
    "citation": """\
@unpublished{sun-distill-what-you-trust,
  title = {Distill What You Trust: Reliability-Aware Multi-Teacher On-Policy Distillation},
  author = {Jie Sun and Mao Zheng and Mingyang Song and Zeyuan Liu and Gengsheng Li and Houcheng Jiang and Yilin Cheng
            and Bichuan Feng and Yuchen Cai and Junfeng Fang and Xiang Wang},
}""",
}

_TEXT = """---
{data}
---

# {name}

A student distilled from {count} with trustmopd: on its own responses, {how}.

{usage}
| role | checkpoint | mu |
|---|---|---|
{rows}

{results}
**Training.** {prompts} prompts{of_dataset} (fingerprint `{fingerprint}`), {batch} a step, {steps} steps planned,
learning rate {rate:g}, responses of up to {longest} tokens at temperature {temperature:g}, {candidates} candidates a
token. Each `{checkpoint}*` is a whole {kind}; its `{manifest}` lists every setting, version and fingerprint.

**Licence.** A student inherits the terms of its base, its teachers and its prompts: state them here, and as `license`
above, before publishing. (Every checkpoint overwrites this file: edit a copy.)

**Method.** *{paper}*, by trustmopd {version} on [TRL](https://github.com/huggingface/trl). To cite it:

```bibtex
{citation}
```
"""


def model_card(
    run: RunIdentity,
    args: TrustMOPDConfig,
    mu: Mapping[str, float],
    *,
    planned_steps: int,
    name: str | None,
    dataset: str | None,
    tags: Iterable[str],
    results: str,
    newest: Path,
) -> str:
    """`results` are scores and cost, `newest` is the newest checkpoint."""
    student, teachers = run.student.source, run.asked
    rows = [("student at the start", student, "")]
    if run.reference is not None and run.reference.source != student:
        rows.append(("reference", run.reference.source, ""))
    own = {name: each.source for name, each in run.own_references.items()}
    own |= dict.fromkeys(run.fallbacks, f"{student} (the student: a fall-back, unless the teacher grew from it)")
    rows += [(f"reference of `{name}`", source, "") for name, source in own.items()]
    read = {name: f", with {view}".replace("|", "\\|") for name, view in run.views.items()}
    rows += [(f"teacher `{n}`", t.source + read.get(n, ""), f"{mu[n]:.4g}" if mu else "") for n, t in teachers.items()]
    data = ModelCardData(
        base_model=None if Path(student).exists() or "/" not in student else student,
        datasets=dataset,
        library_name="peft" if run.adapter else "transformers",
        pipeline_tag="text-generation",
        tags=sorted(set(tags)),
    )
    return _TEXT.format(
        data=data.to_yaml() + ("" if data.base_model else f"\n# base_model: the Hub id of {student}"),
        name=name or "Student",
        count="one teacher" if len(teachers) == 1 else f"{len(teachers)} teachers",
        how=_how(args),
        usage=USAGE.format(model=newest),
        rows="\n".join(f"| {' | '.join(row)} |" for row in rows),
        prompts=run.num_prompts,
        fingerprint=run.prompt_hash[:16],
        of_dataset=f" of `{dataset}`" if dataset else "",
        batch=args.global_batch_size,
        steps=planned_steps,
        rate=args.learning_rate,
        longest=args.max_completion_length,
        temperature=args.temperature,
        candidates=args.num_candidates,
        kind="LoRA adapter" if run.adapter else "model",
        checkpoint=CHECKPOINT,
        manifest=MANIFEST,
        paper=PAPER["title"],
        citation=PAPER["citation"],
        version=run.machine["versions"]["trustmopd"],
        results=results,
    )


def _how(args: TrustMOPDConfig) -> str:
    """How the teachers are weighted, as part of a sentence."""
    rule = args.rules.allocation
    how = ""
    if isinstance(rule, Scored):
        habit = " relative to its habit, mu," if rule.calibrated else ""
        how = f"{rule.granularity} by {rule.granularity} by its {rule.score.replace('_', ' ')}{habit} to the power of "
        how += f"{args.gamma:g}"
    return rule.phrase.format(how=how, **rule.model_dump())
