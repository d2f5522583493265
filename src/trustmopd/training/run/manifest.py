"""The manifest: weights, prompts, settings, versions and machine of a run. It is in the run directory and in every
checkpoint, where it is the last file to be written."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.run.identity import RunIdentity
from trustmopd.training.run.resume_policy import SAMPLING, experiment_fields
from trustmopd.training.variants import rule_name


def dependencies(run: RunIdentity, args: TrustMOPDConfig) -> dict[str, Any]:
    """What a calibration depends on. The training seed is not part of it: all seeds share one calibration."""
    own = {name: reference.fingerprint for name, reference in run.own_references.items()}
    return {
        # Errors name the first difference, so causes come first: another score may need no reference, and another
        # student may be another reference.
        "score": rule_name(args.score),
        "student": run.student.fingerprint,
        "teachers": {name: teacher.fingerprint for name, teacher in run.asked.items()},
        "reference": run.reference.fingerprint if run.reference else None,
        **({"own_references": own} if own else {}),
        "tokenizer": run.tokenizer,
        "prompts": run.prompt_hash,
        **{name: getattr(args, name) for name in SAMPLING},
    }


def run_manifest(
    run: RunIdentity, args: TrustMOPDConfig, *, run_id: str, planned_steps: int, resumed: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """`planned_steps` follows from the epochs if `max_steps` is -1; `resumed` lists what changed at each resume."""
    return {
        "run": run_id,
        "directory": str(Path.cwd()),  # relative paths in `config` and in the recipe start here (`runs/layout.py`)
        **run.machine,
        "models": {
            "student": {
                **asdict(run.student),
                "trainable_parameters": run.trainable_parameters,
                "adapter": run.adapter,
            },
            "reference": asdict(run.reference) if run.reference else None,
            "own_references": {name: asdict(own) for name, own in run.own_references.items()},
            "teachers": {name: asdict(teacher) for name, teacher in run.teachers.items()},
        },
        "tokenizer": run.tokenizer,
        "vocab_size": run.vocab_size,
        "prompts": {
            "source": f"{run.num_prompts} prompts",
            "fingerprint": run.prompt_hash,
            "system": run.system,
            "over_max_prompt_length": run.overlong_prompts,
        },
        "planned_steps": planned_steps,
        "config": args.to_dict(),
        # Of `config`: what makes two runs two experiments.
        "experiment": experiment_fields(has_dropout=run.has_dropout),
        "resumed": list(resumed),
    }
