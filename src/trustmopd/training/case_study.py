"""The paper's case study: one position of a recorded rollout, judged again by the run's models over all candidates. The
result is a JSON record, which `report/page/case_studies.py` prints and draws."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trustmopd.method import calibrated_scores, mixed_target, response_level, trust_weights
from trustmopd.recipe import Recipe, load_recipe, teacher_source
from trustmopd.recipe.rules import TRUST, Trust
from trustmopd.recipe.teacher_source import TeacherSource
from trustmopd.runs import RunDirectory, located, searched, step_of, whole_checkpoints
from trustmopd.runs.checkpoints import read_manifest
from trustmopd.runs.layout import CHECKPOINT
from trustmopd.training.prepare import prepare
from trustmopd.training.prompt_lengths import ROW
from trustmopd.training.step.batch import Batch, Rollout, RolloutId
from trustmopd.training.step.records import TokenTexts
from trustmopd.training.trainer import TrustMOPDTrainer

STUDENT = "student"
_PREFIX = 300  # characters of the response that are shown before the position


def parse_tokens(given: Sequence[str]) -> dict[str, list[str]]:
    """`NAME=TOKEN` and `NAME=/REGEX/`, several of one name together."""
    sets: dict[str, list[str]] = {}
    for each in given:
        name, equals, token = each.partition("=")
        if not equals or not name or not token:
            raise ValueError(f"--tokens {each!r} is not NAME=TOKEN or NAME=/REGEX/. An example is right=964.")
        sets.setdefault(name, []).append(token)
    if not sets:
        raise ValueError("a case study needs at least one set of tokens. Add --tokens NAME=TOKEN.")
    return sets


def compute_case(
    run: Path,
    sets: Mapping[str, Sequence[str]],
    *,
    step: int,
    row: int,
    at: int,
    token_ids: Sequence[int],
    recorded: Any,
) -> dict[str, Any]:
    """`at` is the position in `token_ids`, the recorded response. `recorded` are its weights, K × T; `difference` in
    the result is how far the new ones are from them."""
    trainer = _trainer(run, step)
    rows = list(trainer.train_dataset[ROW])
    if row not in rows:
        raise ValueError(
            f"rollout {row} is not a row of the prompt set, which has {len(rows)} rows. Restore the run's prompts."
        )
    example = trainer.train_dataset[rows.index(row)]
    prompt = example["prompt"]
    scored, result = _objective(trainer, example, token_ids)
    assert result.scores is not None
    args, mu, teachers = trainer.args, trainer.mu, trainer.pool.teachers
    r = result.scores if mu is None else calibrated_scores(result.scores, mu)
    by_token = trust_weights(result.scores, mu, args.gamma)
    by_response = response_level(by_token, scored.at.mask)
    text_of = TokenTexts(trainer._tokenizer)
    texts = [text_of[token] for token in scored.at.candidate_ids[0, at].tolist()]
    members = {name: _members(name, patterns, texts) for name, patterns in sets.items()}

    def mass(logp: Tensor) -> dict[str, float]:
        return {name: float(logp[places].exp().sum()) for name, places in members.items()}

    def says(logp: Tensor) -> dict[str, Any]:
        return {"top": texts[int(logp.argmax())], "mass": mass(logp)}

    policies = {
        name: {
            **says(scored.at.teacher_logp[k, 0, at]),
            "r": float(r[k, 0, at]),
            "w": float(by_token[k, 0, at]),
            "w_response": float(by_response[k, 0, at]),
        }
        for k, name in enumerate(teachers)
    }
    policies[STUDENT] = says(scored.at.student_logp[0, at])
    target = {
        kind: mass(mixed_target(scored.at.teacher_logp[:, 0, at], weights[:, 0, at]))
        for kind, weights in (("token", by_token), ("response", by_response))
    }
    difference = np.abs(result.weights[:, 0].cpu().numpy() - np.asarray(recorded)).max()
    return {
        "step": step,
        "rollout": row,
        "prompt": prompt if isinstance(prompt, str) else "\n\n".join(str(message["content"]) for message in prompt),
        "prefix": trainer._tokenizer.decode(list(token_ids[:at]))[-_PREFIX:],
        "sampled": text_of[token_ids[at]],
        "num_candidates": args.num_candidates,
        "gamma": args.gamma,
        "sets": {name: [texts[place] for place in places] for name, places in members.items()},
        "policies": policies,
        "target": target,
        "difference": float(difference),
    }


def _trainer(run: Path, step: int) -> TrustMOPDTrainer:
    """The run's trainer with the student that wrote the rollouts of `step`: the initial student or a checkpoint."""
    files = RunDirectory(run)
    if not files.recipe.is_file():
        raise ValueError(
            f"{run} has no {files.recipe.name}, which names the models and prompts. `trustmopd train` writes one; for "
            "a run started from Python, put the recipe there."
        )
    manifest = read_manifest(run)
    recipe = _from_here(load_recipe(files.recipe), run, manifest)
    if not isinstance(recipe.allocation, Trust):
        raise ValueError(
            f"{run} was trained with allocation {recipe.allocation.rule}. A case study shows r and w of the rule "
            f"{TRUST}. Use a run with that rule."
        )
    checkpoint = files.checkpoint(step - 1)
    if step > 1 and checkpoint not in whole_checkpoints(files.checkpoints):
        # Steps with recorded rollouts whose student still exists.
        kept = {1, *(step_of(path) + 1 for path in whole_checkpoints(files.checkpoints))}
        askable = sorted(files.recorded().keys() & kept)
        take = f"Choose a rollout of step {', '.join(map(str, askable))}, or train" if askable else "Train"
        raise ValueError(
            f"the student that wrote the rollouts of step {step} was not kept: there is no {checkpoint}. {take} again "
            f"with more checkpoints: the rollouts of step N + 1 need {CHECKPOINT}N (save_steps, save_total_limit)."
        )
    changes = {"calibration_path": str(files.calibration)} if recipe.allocation.calibrated else {}
    try:
        trainer = prepare(recipe, **changes).trainer(recipe.seeds[0])
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{files.recipe}: {error} {searched(manifest)}") from error
    if step > 1:  # after the pool was built: its reference stays the initial student
        trainer.load_student(checkpoint)
    return trainer


def _from_here(recipe: Recipe, run: Path, manifest: Mapping[str, Any]) -> Recipe:
    """The recipe for this seed only, with the run as its output and with paths that are valid here."""

    def at(source: str | None) -> str | None:
        return source and str(located(source, run, manifest) or source)

    def found(source: TeacherSource) -> TeacherSource:
        own = source.reference
        moved = found(own) if own is not None and own.model != teacher_source.STUDENT else own
        return source.model_copy(update={"model": at(source.model), "adapter": at(source.adapter), "reference": moved})

    changes = {
        "student": at(recipe.student),
        "reference": at(recipe.reference),
        "teachers": {name: found(teacher) for name, teacher in recipe.teachers.items()},
        "prompts": recipe.prompts.model_copy(update={"path": at(recipe.prompts.path)}),
        "seeds": [int(manifest["config"]["seed"])],
        "output": run,
    }
    return recipe.model_copy(update=changes)


@torch.no_grad()
def _objective(trainer: TrustMOPDTrainer, row: Mapping[str, Any], token_ids: Sequence[int]) -> tuple[Any, Any]:
    device = trainer.accelerator.device
    tensors: dict[str, Any] = {}
    for part, ids in (("prompt", trainer._tokenize_prompts([row["prompt"]])[0][0]), ("completion", list(token_ids))):
        tensors[f"{part}_ids"] = torch.tensor([ids], device=device)
        tensors[f"{part}_mask"] = torch.ones_like(tensors[f"{part}_ids"])
    trainer.model.to(device).eval()
    read = trainer.context.views.read(row, trainer.args.max_prompt_length, trainer.args.prompt_truncation)
    return trainer.objective(Batch.of(tensors, [Rollout(RolloutId(0), "", read=read)]))


def _members(name: str, patterns: Sequence[str], texts: Sequence[str]) -> list[int]:
    """Places of the candidates that a set names."""
    found: list[int] = []
    for pattern in patterns:
        try:
            is_regex = len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")
            matches = re.compile(pattern[1:-1]).search if is_regex else pattern.__eq__
        except re.error as error:
            raise ValueError(f"--tokens {name}={pattern} is not a regular expression ({error}). Correct it.") from None
        found += [place for place, text in enumerate(texts) if matches(text) and place not in found]
    if not found:
        likely = ", ".join(repr(text) for text in texts[:12])
        raise ValueError(
            f"none of the {len(texts)} candidates at this position is in the set {name!r} ({', '.join(patterns)}). The "
            f"first candidates are {likely}. Spaces count."
        )
    return found
