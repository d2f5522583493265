"""Does displacement separate this pool? Measured on rollouts of the initial student, before training.

Labels only group the prompts; scores and weights do not use them.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from trustmopd.method import CandidateState, calibrated_scores, reverse_kl
from trustmopd.policies.graph import fallback_note
from trustmopd.prompts.views import PromptViews
from trustmopd.runs.guard import Guard
from trustmopd.runs.schemas import Diagnosis, DomainDiagnosis, ReferenceDiagnosis
from trustmopd.training import step
from trustmopd.training.calibrate import CALIBRATION_SEED, calibration_rows
from trustmopd.training.diagnosis_verdict import judge, judge_references, judge_views, moved_everywhere
from trustmopd.training.probe import probe
from trustmopd.training.prompt_lengths import ROW
from trustmopd.training.step.groups import GroupTotals
from trustmopd.training.step.inspect import inspected
from trustmopd.training.step.note import StepTotals
from trustmopd.training.variants import rule_name

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer

ALL = "all prompts"


def diagnose(trainer: "TrustMOPDTrainer", rollouts_per_domain: int = 256) -> Diagnosis:
    """Judge some rollouts of each domain, if possible on prompts that calibration did not use."""
    trainer.ensure_calibration()
    groups, held_out = _choose(trainer, rollouts_per_domain)
    rows = [row for group in groups.values() for row in group]
    numbers = trainer.train_dataset[ROW]
    domain_of = {numbers[row]: domain for domain, group in groups.items() for row in group}
    teachers = trainer.pool.teachers
    found: list[dict[str, Any]] = []
    totals, shares = StepTotals(), GroupTotals(teachers, trainer.step_log.groups.longest, trainer.accelerator.device)
    for batch, scored, result in probe(trainer, rows, seed=CALIBRATION_SEED + 1, description="Diagnosing"):
        assert result.scores is not None
        at = scored.at
        recorded = replace(batch, rollouts=tuple(replace(rollout, recorded=True) for rollout in batch.rollouts))
        for metric, values in inspected(scored, result, recorded, teachers).items():
            totals.add(metric, values)
        shares.note(scored, result, batch, teachers)
        measured = {
            "raw": result.scores,
            "score": result.scores if trainer.mu is None else calibrated_scores(result.scores, trainer.mu),
            "weight": result.weights,
        }
        if at.reference_logp is not None:
            measured["distance"] = reverse_kl(
                at.student_logp.expand_as(at.teacher_logp), at.reference_logp.expand_as(at.teacher_logp)
            )
        if trainer.context.views:
            measured |= _against_students_view(trainer, batch, at)
        for b, rollout in enumerate(batch.rollouts):
            valid = at.mask[b] != 0
            if bool(valid.any()):
                sums = {name: values[:, b, valid].double().sum(dim=-1).tolist() for name, values in measured.items()}
                found.append({"domain": domain_of[rollout.id.row], "tokens": int(valid.sum()), **sums})
    found = gather_object(found)
    domains = _summarise(found, list(groups), teachers)
    score = rule_name(trainer.args.score).replace("_", " ")
    references = []
    for start in dict.fromkeys(trainer.pool.references.values()):
        own = [name for name in teachers if trainer.pool.references[name] == start]
        away = sum(rollout["distance"][teachers.index(own[0])] for rollout in found)
        distance = max(0.0, away / sum(rollout["tokens"] for rollout in found))  # rounding errors of the student itself
        source = trainer.pool.members[start].origin.source
        separates, verdict = judge(domains, own, score)
        verdict += moved_everywhere(domains, own)
        if note := fallback_note(trainer.teachers[name] for name in own):
            verdict += f" ({note}.)"
        references.append(
            ReferenceDiagnosis(source=source, teachers=own, distance=distance, separates=separates, verdict=verdict)
        )
    separates, verdict = judge_references(references) if references else judge(domains, teachers, score)
    if not separates and all(domain.leads is not None for domain in domains):
        verdict += "\nYou have labels: allocation.rule=routed trains by them."
    health = totals.reduce(trainer.accelerator) | shares.finish(trainer.accelerator) | _of_views(trainer, found)
    if trainer.calibration is not None:
        health |= {f"mu_error/{name}": trainer.calibration.error(name) for name in teachers}
    return Diagnosis(
        domains=domains,
        references=references,
        held_out=held_out,
        separates=separates,
        verdict=verdict,
        health=health,
        warnings=[*map(str, Guard().read([{"step": 0, **health}] * 10)), *judge_views(health)],  # whatever its patience
    )


def _against_students_view(trainer: "TrustMOPDTrainer", batch: step.Batch, at: CandidateState) -> dict[str, Tensor]:
    """Teachers' nats a token between their own view and the student's, and how much likelier the sampled token is under
    their own; 0 where it is no candidate."""
    asked = step.ask(replace(trainer.context, views=PromptViews()), batch)
    as_student = trainer.objective(asked)[0].at.teacher_logp
    asked.release()
    is_sampled = at.candidate_ids == at.sampled_ids.unsqueeze(-1)
    gain = torch.where(is_sampled, at.teacher_logp - as_student, 0.0).sum(dim=-1)
    return {"nats": reverse_kl(at.teacher_logp, as_student), "gain": gain}


def _of_views(trainer: "TrustMOPDTrainer", found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of each teacher with a view: means over responses of nats and gain, and the standard error of the gain."""
    means: dict[str, float] = {}
    for k, name in enumerate(trainer.pool.teachers):
        if name in trainer.context.views:
            nats, gains = ([each[kind][k] / each["tokens"] for each in found] for kind in ("nats", "gain"))
            error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else abs(gains[0])
            means |= {f"view/{name}/nats": mean(nats), f"view/{name}/gain": mean(gains), f"view/{name}/error": error}
    return means


def _choose(trainer: "TrustMOPDTrainer", count: int) -> tuple[dict[str, list[int]], bool]:
    """Rows of the prompt set by domain, and whether calibration used none of them."""
    dataset, args = trainer.train_dataset, trainer.args
    labels = dataset[args.domain_column] if args.domain_column in dataset.column_names else [None] * len(dataset)
    used = (
        set(calibration_rows(len(dataset), args.calibration_batches * args.global_batch_size))
        if args.calibrates
        else set()
    )
    labelled = any(label is not None for label in labels)
    order = np.random.default_rng(CALIBRATION_SEED + 1).permutation(len(dataset)).tolist()
    groups: dict[str, list[int]] = {}
    for row in sorted(order, key=lambda row: row in used):  # stable: prompts that calibration did not use come first
        group = groups.setdefault(("mixed" if labels[row] is None else str(labels[row])) if labelled else ALL, [])
        if len(group) < count:
            group.append(row)
    teachers = trainer.pool.teachers  # in their order, so that matching pairs are on the table's diagonal
    ordered = sorted(groups, key=lambda name: (teachers.index(name) if name in teachers else len(teachers), name))
    return {name: groups[name] for name in ordered}, not any(row in used for group in groups.values() for row in group)


def _summarise(
    found: Sequence[dict[str, Any]], groups: Sequence[str], teachers: Sequence[str]
) -> list[DomainDiagnosis]:
    domains = []
    for domain in groups:
        rollouts = [rollout for rollout in found if rollout["domain"] == domain]
        if not rollouts:
            continue
        tokens = sum(rollout["tokens"] for rollout in rollouts)

        def by_teacher(kind: str, rollouts: list[dict[str, Any]] = rollouts, tokens: int = tokens) -> dict[str, float]:
            return {name: sum(r[kind][k] for r in rollouts) / tokens for k, name in enumerate(teachers)}

        leads = None
        if domain in teachers and len(teachers) > 1:
            own = teachers.index(domain)
            leads = mean(r["weight"][own] > max(w for k, w in enumerate(r["weight"]) if k != own) for r in rollouts)
        spread = {
            name: stdev(r["score"][k] / r["tokens"] for r in rollouts) if len(rollouts) > 1 else 0.0
            for k, name in enumerate(teachers)
        }
        domains.append(
            DomainDiagnosis(
                domain=domain,
                rollouts=len(rollouts),
                tokens=tokens,
                raw=by_teacher("raw"),
                score=by_teacher("score"),
                spread=spread,
                weight=by_teacher("weight"),
                leads=leads,
            )
        )
    return domains
