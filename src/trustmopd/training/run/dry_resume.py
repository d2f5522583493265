"""What `train --resume --dry-run` compares with a checkpoint: all that a resume compares, except for weights."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trustmopd.policies import REFERENCE, Teacher
from trustmopd.policies.preflight.duplicates import same_model
from trustmopd.policies.references import role_of, starts_of
from trustmopd.recipe import Recipe
from trustmopd.runs import RunDirectory, resumable_checkpoint, step_of, whole_checkpoints
from trustmopd.runs.checkpoints import read_manifest
from trustmopd.training.calibration import Calibration
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.parallelism import Parallelism
from trustmopd.training.run.resuming import changes, check_checkpoint, check_same_engine, check_same_settings
from trustmopd.training.setup import Ingredients, used_teachers


def checkpoint_to_resume(
    recipe: Recipe, seed: int, args: TrustMOPDConfig, known: Mapping[str, Any], given: Ingredients
) -> str | None:
    """The checkpoint that a seed is resumed from, and what has changed since; None if it has none. `known` are the
    dependencies of a calibration that need no weights."""
    run = recipe.run_directory(seed)
    if not whole_checkpoints(RunDirectory(run).checkpoints):
        return None
    checkpoint = resumable_checkpoint(True, str(args.output_dir), run)
    check_checkpoint(checkpoint)
    check_same_engine(checkpoint, asdict(Parallelism.expected(args)))
    check_same_settings(checkpoint, args.to_dict())
    models = read_manifest(checkpoint)["models"]
    began, now = _frozen_of(models), {**_teachers(given), **_references(args, given)}
    _check_same_kind(recipe, checkpoint, known["prompts"], began, now)
    if args.calibrates:
        Calibration.load(RunDirectory(checkpoint).calibration).check_known(known)
    # Models with another path may have been moved: their weights are compared when they are loaded.
    sources = {"student": (models["student"]["source"], recipe.student)}
    sources |= {name: (was, now[name]) for name, was in began.items()}
    moved = {name: (was, is_now) for name, (was, is_now) in sources.items() if was != is_now}
    changed = {**moved, **changes(checkpoint, args.to_dict())}
    told = "".join(f", {name} {is_now} instead of {was}" for name, (was, is_now) in changed.items())
    return f"{checkpoint} (step {step_of(checkpoint)}{told})"


def _check_same_kind(
    recipe: Recipe, checkpoint: Path, prompts: str, began: Mapping[str, Any], now: Mapping[str, str]
) -> None:
    """Refuse other prompts, teachers or references than before, and an adapter in place of a model."""
    stored = read_manifest(checkpoint)
    adapter = stored["models"]["student"].get("adapter", recipe.peft)
    for what, was, is_now in (
        ("the prompt set", stored["prompts"]["fingerprint"], prompts),
        ("the list of teachers and references", ", ".join(sorted(began)), ", ".join(sorted(now))),
        ("peft", "none" if adapter is None else "one", "none" if recipe.peft is None else "one"),
    ):
        if was != is_now:
            raise ValueError(
                f"{what} was {was} when this run began ({checkpoint}), and is {is_now} now. Restore it, or start a new "
                "run in another output."
            )


def _frozen_of(models: Mapping[str, Any]) -> dict[str, str | None]:
    """Where a manifest's teachers and references come from, by the names that messages use."""
    own = {f"{REFERENCE}:{name}": each for name, each in models.get("own_references", {}).items()}
    common = {REFERENCE: models["reference"]} if models["reference"] else {}
    return {role_of(name): each.get("source") for name, each in {**models["teachers"], **common, **own}.items()}


def _teachers(given: Ingredients) -> dict[str, str]:
    return {role_of(name): teacher.source for name, teacher in given.teachers.items()}


def _references(args: TrustMOPDConfig, given: Ingredients) -> dict[str, str]:
    """The references that the run scores with. A copy of the common one is no other reference."""
    if not args.needs_reference:
        return {}
    starts = [start for start in starts_of(used_teachers(given.teachers, args), given.reference) if start.measures]
    policies = {start.name: start.given or Teacher(model=given.source) for start in starts}
    found = {}
    for start in starts:
        source = start.given.source if start.given else f"{given.source} (initial student)"
        if start.name == REFERENCE:
            found[role_of(REFERENCE)] = source
        elif REFERENCE not in policies or not same_model(policies[start.name], policies[REFERENCE]):
            found |= {role_of(f"{REFERENCE}:{name}"): source for name in start.measures}
    return found
