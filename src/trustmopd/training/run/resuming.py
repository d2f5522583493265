"""Resuming a run: what must stay the same, what may change, and how a change takes effect."""

import json
import logging
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from trustmopd.policies import REFERENCE
from trustmopd.policies.graph import role_of
from trustmopd.policies.pool import UNKNOWN
from trustmopd.policies.preflight.model_facts import check_files
from trustmopd.recipe.rules import PARTS, Scored, part_of
from trustmopd.runs import RunDirectory
from trustmopd.runs.checkpoints import RESUME_FROM, check_whole, read_manifest
from trustmopd.training.calibration import Calibration
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.run.resume_policy import LESSONS, STORED, TOLD
from trustmopd.util.messages import first_line

logger = logging.getLogger(__name__)

#: The files in which each engine stores the optimizer's state.
_OPTIMIZER = {"ZeRO": "global_step*/*optim_states.pt", "FSDP": "optimizer*"}
_ANOTHER = f"Resume from another checkpoint ({RESUME_FROM})"


class _State(BaseModel):
    """What resuming needs of transformers' trainer_state.json."""

    global_step: int
    epoch: float
    max_steps: int
    num_train_epochs: int
    train_batch_size: int | None
    log_history: list[dict[str, Any]]


@dataclass(frozen=True)
class Resume:
    """A checkpoint that the run can be resumed from. `changed` has the old and new value of changed settings; `history`
    is the manifest's list of resumes, this one last."""

    checkpoint: Path
    run_id: str
    state: TrainerState
    changed: dict[str, list[Any]]
    history: list[dict[str, Any]]

    @classmethod
    def of(cls, checkpoint: Path, manifest: Mapping[str, Any]) -> "Resume":
        """`manifest` is the one that the run would write now."""
        check_resumable(checkpoint, manifest)
        stored, state = read_manifest(checkpoint), read_state(checkpoint)
        changed = changes(checkpoint, manifest["config"])
        for name, (was, now) in changed.items():
            logger.warning("%s was %r up to step %d, and is %r from now on.", name, was, state.global_step, now)
        history = [*stored.get("resumed", []), {"step": state.global_step, "changed": changed}]
        return cls(checkpoint, stored["run"], state, changed, history)


def check_resumable(checkpoint: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that a run with this manifest cannot go on from. The weights of models
    that are not loaded yet may be any."""
    check_checkpoint(checkpoint)
    check_same_engine(checkpoint, manifest["engine"])
    check_same_settings(checkpoint, manifest["config"])
    check_same_ingredients(checkpoint, manifest)


def check_checkpoint(checkpoint: Path) -> None:
    """Refuse a checkpoint with missing or truncated files. Without the state of the optimizer or of the random numbers,
    transformers would silently start with new ones."""
    check_whole(checkpoint)
    config = read_manifest(checkpoint)["config"]
    if config.get("save_only_model"):
        raise ValueError(
            f"{checkpoint} was saved with save_only_model = True, without the optimizer's state, so the run cannot be "
            "resumed from it. Start a new run with this checkpoint as the student."
        )
    check_files("checkpoint", str(checkpoint))
    engine = read_manifest(checkpoint).get("engine", {}).get("name", "DDP")
    optimizer = _OPTIMIZER.get(engine[:4], "optimizer.*")
    for pattern in (TRAINER_STATE_NAME, optimizer, "scheduler.pt", "rng_state*.pth"):
        if not any(checkpoint.glob(pattern)):
            raise ValueError(
                f"{checkpoint} has no {pattern}, which is needed to resume. {_ANOTHER}, or start a new run with this "
                "one as the student."
            )
    for shards in checkpoint.glob("*/.metadata"):  # of torch.distributed.checkpoint
        written = {each.relative_path for each in FileSystemReader(shards.parent).read_metadata().storage_data.values()}
        if missing := sorted(written - {file.name for file in shards.parent.iterdir()}):
            raise ValueError(
                f"{shards.parent} lacks {', '.join(missing)}, which other processes wrote. Copy the files of all nodes "
                "into one folder."
            )
    for file in sorted((*checkpoint.glob("*.pt"), *checkpoint.glob("*.pth"))):
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{file} was cut short. {_ANOTHER}, or start the run again.")

    read_state(checkpoint)
    rule, calibration = part_of(config, "allocation"), RunDirectory(checkpoint).calibration
    remedy = f"Copy the run directory's {calibration.name} into {checkpoint}, or name another one ({RESUME_FROM})"
    if calibration.exists():
        Calibration.load(calibration, remedy=f"{remedy}.")
    elif isinstance(rule, Scored) and rule.calibrated:
        raise ValueError(f"{checkpoint} has no {calibration.name}, the mu that this run is taught with. {remedy}.")


def read_state(checkpoint: Path) -> TrainerState:
    path = checkpoint / TRAINER_STATE_NAME
    try:
        _State.model_validate_json(path.read_bytes(), strict=True)
        return TrainerState.load_from_json(str(path))
    except ValidationError as error:
        wrong = error.errors()[0]
        reason = " ".join(filter(None, (".".join(map(str, wrong["loc"])), wrong["msg"].lower())))
    except (OSError, TypeError) as error:
        reason = first_line(error)
    raise ValueError(f"{path} was cut short or edited ({reason}). {_ANOTHER}, or start the run again.")


def check_same_settings(checkpoint: Path, config: Mapping[str, Any]) -> None:
    """Refuse to resume with another rule, other sampling or another order of prompts."""
    stored = read_manifest(checkpoint)["config"]
    pairs = {field: (was, is_now) for field, was, is_now in _lessons(stored, _plain(dict(config)))}
    if changed := [f"{field} was {was!r} and is {now!r} now" for field, (was, now) in pairs.items() if was != now]:
        raise ValueError(
            f"this run began with other settings ({checkpoint}): {'; '.join(changed)}. They decide what the student is "
            "taught, so they cannot change within a run. Set them back, or start a new run in another output folder."
        )
    done = read_state(checkpoint).global_step
    if 0 < config.get("max_steps", 0) < done:
        raise ValueError(
            f"max_steps = {config['max_steps']}, but {checkpoint} has {done} steps already. Raise max_steps, or start "
            "a new run in another output folder."
        )


def _lessons(*configs: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Every setting that decides what is taught, with its old and new value; a variant's parameters one by one."""
    for field in LESSONS:
        if field not in PARTS:
            # An earlier release had none of the newer fields: it did what their defaults say.
            was, is_now = (config.get(field, getattr(TrustMOPDConfig, field)) for config in configs)
            yield field, was, is_now
            continue
        before, after = (part_of(config, field).model_dump() for config in configs)
        for parameter in {**before, **after}:
            yield f"{field}.{parameter}", before.get(parameter), after.get(parameter)


def check_same_engine(checkpoint: Path, engine: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that another engine wrote. One process and DDP write the same files."""
    stored = read_manifest(checkpoint).get("engine")
    if stored is None:
        return
    files = [(each["name"].replace("one process", "DDP"), each["checkpoints"]) for each in (stored, engine)]
    if files[0] != files[1]:
        names = [f"{each['name']} with {each['checkpoints']} checkpoints" for each in (stored, engine)]
        raise ValueError(
            f"{checkpoint} was written by {names[0]}, and {names[1]} cannot read its optimizer's files. Use the same "
            "engine, or start a new run with this checkpoint as the student."
        )
    if engine["name"].startswith("ZeRO") and stored["processes"] != engine["processes"]:
        raise ValueError(
            f"{checkpoint} was written by {stored['processes']} processes, and DeepSpeed can only resume with the same "
            f"number; now there are {engine['processes']}. Start as many processes, or start a new run with this "
            "checkpoint as the student."
        )


def check_same_ingredients(checkpoint: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse to resume with other weights or prompts."""
    stored = read_manifest(checkpoint)
    before, after = _ingredients(stored), _ingredients(manifest)
    pairs = {name: (before.get(name) or {}, after.get(name) or {}) for name in {**before, **after}}
    if changed := [
        f"{name} was {_named(was)} and is {_named(is_now)} now"
        for name, (was, is_now) in pairs.items()
        if _differs(was, is_now)
    ]:
        raise ValueError(
            f"this run began with other models or prompts ({checkpoint}): {'; '.join(changed)}. They decide what the "
            "student is taught, so they cannot change within a run. Restore them, or start a new run in another output "
            "folder."
        )
    if "adapter" in stored["models"]["student"]:
        _check_same_adapter(checkpoint, *(_plain(each["models"]["student"]) for each in (stored, manifest)))


def _check_same_adapter(checkpoint: Path, before: Mapping[str, Any], student: Mapping[str, Any]) -> None:
    """Of a student that is not loaded yet, only some settings are known."""
    was, is_now = before["adapter"], student["adapter"]
    is_part = was and is_now and student["fingerprint"] == UNKNOWN
    fields = is_now if is_part else {**(was or {}), **(is_now or {})}
    for field in fields:
        values = [each.get(field) if each else "none (all weights are trained)" for each in (was, is_now)]
        if values[0] != values[1]:
            raise ValueError(
                f"the student's adapter is not what this run began with: {field} was {values[0]!r} in {checkpoint} and "
                f"is {values[1]!r} now. Restore peft, or start a new run in another output folder."
            )


def moves(checkpoint: Path, manifest: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The models that come from another place than before, each with its old and new one."""
    before, after = (_models(each) for each in (read_manifest(checkpoint), manifest))
    sources = {name: [before[name]["source"], after[name]["source"]] for name in before if after.get(name)}
    return {name: [was, is_now] for name, (was, is_now) in sources.items() if was != is_now}


def changes(checkpoint: Path, config: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The settings that differ from the checkpoint's, each with its old and new value."""
    stored, now = read_manifest(checkpoint)["config"], _plain(dict(config))
    return {name: [stored.get(name), now.get(name)] for name in (*STORED, *TOLD) if stored.get(name) != now.get(name)}


def fresh_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The settings of the optimizer's groups, from the configuration; `lr` is what the schedule starts from."""
    return [
        {name: value for name, value in group.items() if name != "params"}
        | {"lr": group.get("initial_lr", group["lr"])}
        for group in optimizer.param_groups
    ]


def apply_changes(
    changed: Mapping[str, Any], fresh: list[dict[str, Any]], optimizer: Optimizer, scheduler: Any
) -> None:
    """Apply changed settings: loading a checkpoint has restored its own in optimizer and scheduler. `fresh` are the
    groups as they were before."""
    if isinstance(scheduler, LambdaLR):
        factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
        scheduler.base_lrs = [given["lr"] for given in fresh]
        for group, given, factor in zip(optimizer.param_groups, fresh, factors, strict=True):
            group.update(given, lr=given["lr"] * factor, initial_lr=given["lr"])
        scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]
    elif lost := changed.keys() & {*STORED}:
        raise ValueError(
            f"{min(lost)} has changed, but a {type(scheduler).__name__} keeps its own values, so the change would have "
            "no effect. Restore it, or start a new run with this checkpoint as the student."
        )


def _ingredients(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return _models(manifest) | {"the prompt set": manifest["prompts"]}


def _models(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """By the names that messages use."""
    models = manifest["models"]
    references = {REFERENCE: models["reference"]} if models["reference"] else {}
    references |= {f"{REFERENCE}:{name}": own for name, own in models.get("own_references", {}).items()}
    frozen = {role_of(name): each for name, each in {**references, **models["teachers"]}.items()}
    return {"the student": models["student"], **frozen}


def _differs(was: Mapping[str, Any], is_now: Mapping[str, Any]) -> bool:
    """A model that is not loaded yet may be the one before."""
    if not was or not is_now:
        return bool(was) != bool(is_now)
    return was.get("view") != is_now.get("view") or is_now.get("fingerprint") not in (was.get("fingerprint"), UNKNOWN)


def _named(ingredient: Mapping[str, Any]) -> str:
    mark = f" ({ingredient['fingerprint']})" if ingredient.get("fingerprint") not in (None, UNKNOWN) else ""
    view = f" with {ingredient['view']}" if ingredient.get("view") else ""
    return f"{ingredient.get('source', 'none')}{mark}{view}"


def _plain(value: Any) -> Any:
    """As it would be read back from a JSON file."""
    return json.loads(json.dumps(value, default=str))
