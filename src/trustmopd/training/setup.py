"""Check the arguments of a trainer before anything is loaded or written; then load the pool."""

import logging
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from trustmopd.policies import REFERENCE, Teacher, TeacherPool, build_pool, load_tokenizer
from trustmopd.policies.graph import Unit, asked_for, placed, units_of
from trustmopd.policies.host_memory import check_host_memory
from trustmopd.policies.hosts.ray.cluster import check_address, check_ray
from trustmopd.policies.pool import Elsewhere
from trustmopd.policies.preflight.checks import preflight
from trustmopd.policies.preflight.model_facts import ModelFacts, facts_of
from trustmopd.policies.references import as_pool
from trustmopd.policies.teacher import model_id
from trustmopd.prompts.prompt_set import check_labels, check_prompts
from trustmopd.recipe.teacher_source import OFFLOAD, RAY, SHARDED
from trustmopd.training.calibration import Calibration
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.environment import check_environment
from trustmopd.training.prompt_lengths import prompt_lengths
from trustmopd.training.run.across_ranks import all_succeed, first_decides
from trustmopd.training.vllm_checks import check_vllm_can_sample

logger = logging.getLogger(__name__)

#: Warn of more passes over the prompt set than this.
MANY_PASSES = 20


@dataclass(frozen=True)
class Ingredients:
    """`source` names the student, and `reference=None` means the student. `vocab_size` counts the rows that all models
    have, `prompt_lengths` the tokens of every prompt, `longest` the most tokens of a prompt and its response. `facts`
    are the student's, which policies elsewhere are compared with."""

    source: str
    facts: ModelFacts
    teachers: dict[str, Teacher]
    reference: Teacher | None
    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    prompt_lengths: list[int]
    longest: int


def check_ingredients(
    model: Any,
    teachers: Mapping[str, Any],
    reference: Any,
    args: TrustMOPDConfig,
    prompts: Any,
    tokenizer: Any = None,
    eval_prompts: Any = None,
    tools: Any = None,
    *,
    trains_adapter: bool = False,
) -> Ingredients:
    check_environment(args)
    if not isinstance(prompts, Dataset):
        raise ValueError(
            f"train_dataset is a {type(prompts).__name__}; a datasets.Dataset is needed, because prompts are "
            "checked before training. Turn a stream into one with Dataset.from_list(list(stream.take(n)))."
        )
    pool, reference = as_pool(teachers, reference, model)
    pool = {name: placed(name, teacher, args.teacher_placement) for name, teacher in pool.items()}
    reference = None if reference is None else placed(REFERENCE, reference, args.teacher_placement)
    _check_ray(pool, reference, args)
    evaluated = eval_prompts if isinstance(eval_prompts, Mapping) else {"eval": eval_prompts}
    for checked in (prompts, *(dataset for dataset in evaluated.values() if isinstance(dataset, Dataset))):
        check_prompts(checked)
        if args.rules.allocation.rule == "routed":
            check_labels(checked, args.domain_column, list(pool))
    if len(prompts) < args.global_batch_size:
        raise ValueError(
            f"the prompt set has {len(prompts)} prompts, fewer than one batch of global_batch_size = "
            f"{args.global_batch_size}. Add prompts, or lower global_batch_size."
        )
    scores = {"eval_strategy": args.eval_strategy != "no", "save_strategy": args.save_strategy == "best"}
    for name, wanted in scores.items():
        if eval_prompts is None and wanted:
            raise ValueError(
                f"{name} = {getattr(args, name).value!r} needs an eval_dataset, and recipes have none. Leave it unset; "
                "`trustmopd evaluate` scores a finished run."
            )
    if args.calibrates and args.calibration_path is not None:
        first_decides(partial(Calibration.load, args.calibration_path))  # it is compared once the models are loaded
    if args.domain_column not in (None, "domain", *prompts.column_names):
        raise ValueError(
            f"domain_column = {args.domain_column!r} is not a column of the prompt set, which has "
            f"{', '.join(prompts.column_names)}. Name one of them, or None if prompts have no labels."
        )
    if args.rules.allocation.rule == "single" and args.single_teacher not in pool:
        raise ValueError(
            f"single_teacher = {args.single_teacher!r} is not in the pool ({', '.join(pool)}). Choose one of them."
        )
    source = str(model) if isinstance(model, (str, Path)) else model_id(model)
    if tokenizer is None:
        revision = (args.model_init_kwargs or {}).get("revision")
        tokenizer = load_tokenizer(source, revision=revision, trust_remote_code=args.trust_remote_code)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError(
            f"processing_class is a {type(tokenizer).__name__}; only text models, with a tokenizer, are supported."
        )
    if tokenizer.chat_template is None and not isinstance(prompts[0]["prompt"], str):
        raise ValueError(
            f"the prompts are conversations, but the student's tokenizer ({source}) has no chat template "
            "to render them. Save the template that it was trained with beside it, or give prompts as plain text."
        )
    _tell_of_prompts(prompts, tokenizer, args)
    lengths = prompt_lengths(prompts, tokenizer, tools=tools, **args.chat_template_kwargs or {})
    assert args.max_completion_length is not None
    longest = min(max(lengths), args.max_prompt_length or max(lengths)) + args.max_completion_length
    vocab_size = preflight(
        model,
        pool,
        reference,
        tokenizer,
        num_candidates=args.num_candidates,
        longest=longest,
        scores_reference=args.needs_reference,
        allow_template_mismatch=args.allow_template_mismatch,
        trust_remote_code=args.trust_remote_code,
    )
    if args.use_vllm:
        used = used_teachers(pool, args)
        check_vllm_can_sample(model, used, reference, args, longest, trains_adapter=trains_adapter)
    facts = facts_of("the student", model, tokenizer=tokenizer, trust_remote_code=args.trust_remote_code)
    return Ingredients(source, facts, pool, reference, tokenizer, vocab_size, lengths, longest)


def _units(teachers: Mapping[str, Teacher], reference: Teacher | None, args: TrustMOPDConfig) -> list[Unit]:
    used, placement = used_teachers(teachers, args), args.teacher_placement
    return units_of(used, reference, with_reference=args.needs_reference, placement=placement)


def _check_ray(teachers: Mapping[str, Teacher], reference: Teacher | None, args: TrustMOPDConfig) -> None:
    """Whether policies can live on Ray, if any is placed there."""
    asked = asked_for(RAY, _units(teachers, reference, args), args.teacher_placement)
    if not asked:
        return
    check_ray(asked)
    if args.ray_address is not None:
        check_address(args.ray_address)
    else:
        _check_gpus_here(teachers)
    if args.ray_address is None and int(os.environ.get("LOCAL_WORLD_SIZE") or args.world_size) < args.world_size:
        raise ValueError(
            "ray_address = None starts a cluster on one machine, but the training processes are on several. Start one "
            "on all of them (docs/remote.md), and give its address."
        )


def _check_gpus_here(teachers: Mapping[str, Teacher]) -> None:
    """A run's own cluster has the GPUs of this machine."""
    asked = {name: each.gpus * (each.replicas or 1) for name, each in teachers.items() if each.on == RAY and each.gpus}
    if sum(asked.values()) > (here := torch.cuda.device_count()):
        told = ", ".join(f"{name} {gpus:g}" for name, gpus in asked.items())
        raise ValueError(
            f"the teachers on Ray ask for more GPUs than the {here} of this machine ({told}, counting replicas). Lower "
            "gpus, leave it out where there are none, or give the ray_address of a cluster that has them."
        )


def _tell_of_prompts(prompts: Dataset, tokenizer: PreTrainedTokenizerBase, args: TrustMOPDConfig) -> None:
    """Warn of what is allowed, but is often a mistake."""
    first = prompts[0]["prompt"]
    if isinstance(first, str) and tokenizer.chat_template:
        warnings.warn(
            "the prompts are plain text, so the student's chat template is not applied to them. If it is a chat model, "
            "give prompts as conversations: [{'role': 'user', 'content': '…'}].",
            stacklevel=4,
        )
    if not isinstance(first, str) and (answered := sum(p[-1]["role"] == "assistant" for p in prompts["prompt"])):
        warnings.warn(
            f"{answered} of {len(prompts)} prompts end with an assistant turn, so the student would reply to its own "
            "answer. Remove that turn if it is the solution.",
            stacklevel=4,
        )
    template = tokenizer.chat_template
    for name in args.chat_template_kwargs or {}:
        known = isinstance(template, dict) or name in signature(tokenizer.apply_chat_template).parameters
        if not known and not re.search(rf"\b{re.escape(name)}\b", template or ""):
            warnings.warn(
                f"chat_template_kwargs.{name} has no effect: the student's chat template does not use this name. "
                "Correct it, or remove it.",
                stacklevel=4,
            )
    passes = max(args.max_steps, 0) * args.global_batch_size / len(prompts)
    if passes > MANY_PASSES:
        warnings.warn(
            f"max_steps = {args.max_steps} steps of {args.global_batch_size} prompts use each of the {len(prompts)} "
            f"prompts {passes:.0f} times. Add prompts, or lower max_steps.",
            stacklevel=4,
        )


def used_teachers(teachers: Mapping[str, Teacher], args: TrustMOPDConfig) -> dict[str, Teacher]:
    """The teachers that the allocation rule asks. The others are not loaded."""
    return {
        name: t for name, t in teachers.items() if args.rules.allocation.rule != "single" or name == args.single_teacher
    }


def check_trainable(student: Any) -> None:
    if not any(parameter.requires_grad for parameter in student.parameters()):
        raise ValueError(
            "the student has no trainable parameter (requires_grad is False for all), so nothing would be learnt. Call "
            "model.requires_grad_(True), or pass peft_config."
        )


def load_pool(
    given: Ingredients, student: Any, args: TrustMOPDConfig, accelerator: Accelerator, run_id: str
) -> TeacherPool:
    teachers = used_teachers(given.teachers, args)
    units = _units(given.teachers, given.reference, args)
    if accelerator.num_processes == 1 and any(unit.on == SHARDED for unit in units):
        raise ValueError(
            "sharded teachers need several processes, but there is only one. Start several (torchrun, accelerate "
            "launch), or use resident or offload."
        )
    # Sharding splits the student's tensors, so the pool needs a base of its own.
    share = accelerator.distributed_type not in (DistributedType.FSDP, DistributedType.DEEPSPEED)
    if offloaded := [unit.given for unit in units if unit.on == OFFLOAD]:
        lent = share and not all(parameter.requires_grad for parameter in student.parameters())
        pinned = [each or Teacher(model=student) for each in offloaded if each is not None or not lent]
        asked = asked_for(OFFLOAD, units, args.teacher_placement)
        # Before anyone takes its share.
        told = all_succeed(partial(check_host_memory, pinned, args.frozen_dtype, asked))
        if accelerator.is_local_main_process:
            logger.warning("%s.", told)
    return build_pool(
        teachers,
        given.reference,
        student,
        with_reference=args.needs_reference,
        device=accelerator.device,
        dtype=args.frozen_dtype,
        placement=args.teacher_placement,
        share=share,
        autocast_dtype=args.mixed_dtype,
        trust_remote_code=args.trust_remote_code,
        elsewhere=_on_ray(given, args, accelerator, run_id) if any(unit.on == RAY for unit in units) else None,
    )


def _on_ray(given: Ingredients, args: TrustMOPDConfig, accelerator: Accelerator, run_id: str) -> Elsewhere:
    from trustmopd.policies.hosts.ray.actor import Checks
    from trustmopd.policies.hosts.ray.policies import RayPolicies, Terms

    terms = Terms(
        run_id=run_id,
        address=args.ray_address,
        limit=args.ray_timeout,
        dtype=args.frozen_dtype,
        autocast_dtype=args.mixed_dtype,
        trust_remote_code=args.trust_remote_code,
        may_use_gpus=not args.use_cpu,
        checks=Checks(given.facts, args.num_candidates, given.longest, args.allow_template_mismatch),
    )
    return RayPolicies(terms, decide=first_decides)
