"""What a run is: its weights, prompts and machine, fixed when the trainer is built; and the manifest that says so, in
the run directory and in every checkpoint, where it is the last file to be written."""

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel

from trustmopd import __version__
from trustmopd.policies import REFERENCE, Teacher, TeacherPool, fingerprint, fingerprint_tokenizer
from trustmopd.policies.load import unloaded_pool
from trustmopd.policies.pool import UNKNOWN, Origin
from trustmopd.policies.preflight.duplicates import adapter_settings
from trustmopd.prompts.reading.messages import common_system
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.parallelism import Parallelism
from trustmopd.training.run.resume_policy import SAMPLING, experiment_fields
from trustmopd.training.setup import Ingredients
from trustmopd.training.variants import rule_name

_PACKAGES = ("transformers", "trl", "peft", "accelerate", "datasets")


@dataclass(frozen=True)
class RunIdentity:
    """`adapter` is the configuration of the adapter that is trained; None if the weights themselves are trained.
    `reference` is the common reference; None if no teacher uses it. `own_references` are listed by teacher.
    `fallbacks` are teachers that are measured from the student in place of the model that they grew from. `has_dropout`
    is the student's, whether it is on or off."""

    student: Origin
    trainable_parameters: int
    adapter: dict[str, Any] | None
    has_dropout: bool
    reference: Origin | None
    own_references: dict[str, Origin]
    fallbacks: list[str]
    teachers: dict[str, Origin]
    tokenizer: str
    vocab_size: int
    num_prompts: int
    system: str | None
    prompt_hash: str
    overlong_prompts: int
    views: dict[str, str]
    machine: dict[str, Any]

    @property
    def references(self) -> set[Origin]:
        """The distinct references that are asked."""
        return {*([self.reference] if self.reference else []), *self.own_references.values()}

    @property
    def asked(self) -> dict[str, Origin]:
        """The teachers that the rule asks."""
        return {name: teacher for name, teacher in self.teachers.items() if teacher.fingerprint is not None}

    @property
    def fingerprints(self) -> dict[str, str | None]:
        """Of every policy, under the name that messages use."""
        frozen = {f"teacher '{name}'": teacher.fingerprint for name, teacher in self.asked.items()}
        reference = {"the reference": self.reference.fingerprint} if self.reference else {}
        own = {f"the reference of teacher '{name}'": each.fingerprint for name, each in self.own_references.items()}
        return {"the student": self.student.fingerprint, **reference, **frozen, **own}


def identity_of(
    student: Any, pool: TeacherPool, given: Ingredients, engine: Parallelism, *, has_dropout: bool
) -> RunIdentity:
    adapter = None
    if isinstance(student, PeftModel):
        settings = adapter_settings(student.peft_config[student.active_adapter])
        adapter = {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}
    return _identity(
        pool,
        given,
        engine,
        student=Origin(given.source, fingerprint(student), sum(p.numel() for p in student.parameters())),
        trainable_parameters=sum(p.numel() for p in student.parameters() if p.requires_grad),
        adapter=adapter,
        has_dropout=has_dropout,
    )


def expected_identity(given: Ingredients, engine: Parallelism, lora: LoraConfig | None) -> RunIdentity:
    """Before anything is loaded: fingerprints are UNKNOWN, and only some settings of the adapter are known."""
    return _identity(
        unloaded_pool(given.graph, Teacher(model=given.source), given.view_marks),
        given,
        engine,
        student=Origin(given.source, UNKNOWN),
        trainable_parameters=0,
        adapter=None if lora is None else {"r": lora.r, "lora_alpha": lora.lora_alpha},
        has_dropout=False,
    )


def _identity(pool: TeacherPool, given: Ingredients, engine: Parallelism, **student: Any) -> RunIdentity:
    teachers, views = given.graph.teachers, given.view_marks
    origins = {name: replace(member.origin, view=views.get(name)) for name, member in pool.members.items()}
    return RunIdentity(
        **student,
        reference=origins.get(REFERENCE),
        own_references={name: origins[start] for name, start in pool.references.items() if start != REFERENCE},
        fallbacks=[name for name in pool.references if teachers[name].is_fallback],
        teachers={name: origins.get(name) or Origin(teacher.source, None) for name, teacher in teachers.items()},
        tokenizer=fingerprint_tokenizer(given.tokenizer),
        vocab_size=given.vocab_size,
        num_prompts=len(given.prompts),
        system=common_system(given.prompts["prompt"]),
        prompt_hash=given.prompt_hash,
        overlong_prompts=given.overlong,
        views=views,
        machine={**describe_machine(engine.processes), "engine": asdict(engine)},
    )


def describe_machine(num_processes: int) -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    # torch's own, which names the build: a wheel's metadata may leave out "+cu130"
    versions = {"torch": str(torch.__version__)} | {package: version(package) for package in _PACKAGES}
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"trustmopd": __version__, "python": platform.python_version(), **versions},
        "hardware": {
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "gpus": gpus,
            "processes": num_processes,
        },
    }


def dependencies(run: RunIdentity, args: TrustMOPDConfig) -> dict[str, Any]:
    """What a calibration depends on. The training seed is not part of it: all seeds share one calibration."""
    own = {name: reference.fingerprint for name, reference in run.own_references.items()}
    return {
        # Errors name the first difference, so causes come first: another score may need no reference, and another
        # student may be another reference.
        "score": rule_name(args.score),
        **({"views": run.views} if run.views else {}),
        "student": run.student.fingerprint,
        "teachers": {name: teacher.fingerprint for name, teacher in run.asked.items()},
        "reference": run.reference.fingerprint if run.reference else None,
        **({"own_references": own} if own else {}),
        "tokenizer": run.tokenizer,
        "prompts": run.prompt_hash,
        **({"mask_reasoning": True} if args.mask_reasoning else {}),
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
