"""`manifest.json`: which weights, prompts, versions and machine a run is made of. It lies in the run directory and,
written last, in every checkpoint: a checkpoint without it was cut short."""

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel

from trustmopd import __version__
from trustmopd.teachers import REFERENCE, fingerprint_tokenizer
from trustmopd.teachers.distinct import adapter_settings
from trustmopd.training.config import rule_name

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer

SAMPLING = (
    "num_candidates",
    "max_completion_length",
    "distillation_temperature",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "max_prompt_length",
    "prompt_truncation",
    "generation_kwargs",
    "chat_template_kwargs",
)
_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")


def describe_machine(num_processes: int) -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    versions = {package: version(package) for package in _PACKAGES}
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"trustmopd": __version__, "python": platform.python_version(), **versions},
        "hardware": {
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "gpus": gpus,
            "processes": num_processes,
        },
    }


def dependencies(trainer: "TrustMOPDTrainer") -> dict[str, Any]:
    """What a calibration follows from. The training seed is not among it: one calibration serves all seeds."""
    members = trainer.pool.members
    return {
        # The first difference is named, so causes come before what follows from them: another score may need no
        # reference, and another student is another reference.
        "score": rule_name(trainer.args.score),
        "student": trainer.student_fingerprint,
        "teachers": {name: members[name].fingerprint for name in trainer.pool.teachers},
        "reference": members[REFERENCE].fingerprint if REFERENCE in members else None,
        "tokenizer": fingerprint_tokenizer(trainer._tokenizer),
        "prompts": trainer.prompt_hash,
        **{name: getattr(trainer.args, name) for name in SAMPLING},
    }


def run_manifest(trainer: "TrustMOPDTrainer") -> dict[str, Any]:
    members = {name: {"source": m.source, "fingerprint": m.fingerprint} for name, m in trainer.pool.members.items()}
    reference = members.pop(REFERENCE, None)
    unused = {name: {"source": teacher.source, "fingerprint": None} for name, teacher in trainer.teachers.items()}
    return {
        "run": trainer.run_id,
        "directory": str(Path.cwd()),  # relative paths in `config` and in the recipe start here (`runs/places.py`)
        **trainer.machine,
        "models": {
            "student": {
                "source": trainer.student_source,
                "fingerprint": trainer.student_fingerprint,
                "trainable_parameters": trainer.get_num_trainable_parameters(),
                "adapter": _adapter_of(trainer.model),
            },
            "reference": reference,
            "teachers": {**unused, **members},
        },
        "tokenizer": fingerprint_tokenizer(trainer._tokenizer),
        "vocab_size": trainer.vocab_size,
        "prompts": {
            "source": f"{len(trainer.train_dataset)} prompts",
            "fingerprint": trainer.prompt_hash,
            "over_max_prompt_length": trainer.overlong_prompts,
        },
        "planned_steps": trainer.state.max_steps,  # what epochs come to, where max_steps is -1
        "config": trainer.args.to_dict(),
        "resumed": trainer.resumed,
    }


def _adapter_of(student: Any) -> dict[str, Any] | None:
    """The configuration of the adapter that is trained, as JSON keeps it; None where the weights themselves are."""
    if not isinstance(student, PeftModel):
        return None
    settings = adapter_settings(student.peft_config[student.active_adapter])
    return {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}
