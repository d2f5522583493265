"""Check the arguments of a trainer before anything is loaded or written; then load the pool."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from trustmopd.planning.this_machine import UnknownMemory, run_here
from trustmopd.policies import PolicyGraph, TeacherPool, build_pool, load_tokenizer, resolve
from trustmopd.policies.hosts.ray.cluster import check_address, check_ray
from trustmopd.policies.preflight.checks import Checks, check_positions, preflight
from trustmopd.policies.preflight.model_facts import facts_of
from trustmopd.policies.teacher import model_id
from trustmopd.prompts.prompt_set import prompt_hash
from trustmopd.prompts.views import PromptView, PromptViews, Rendered, views_of
from trustmopd.recipe.rollout_engines import VLLM
from trustmopd.recipe.teacher_source import OFFLOAD, RAY, SHARDED
from trustmopd.training.calibration import Calibration
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.environment import check_environment, check_vllm_can_sample
from trustmopd.training.prompt_checks import check_prompt_sets, warn_of_prompts
from trustmopd.training.prompt_lengths import fit_prompts, with_rows
from trustmopd.training.run.across_ranks import all_succeed, first_decides
from trustmopd.training.vllm_checks import check_vllm_can_read
from trustmopd.training.watched_prompts import HeldOut, held_out

if TYPE_CHECKING:
    from trustmopd.policies.hosts.ray.policies import RayPolicies

logger = logging.getLogger(__name__)

_ANY = 2**62


@dataclass(frozen=True)
class Ingredients:
    """What a run is made of, checked. `source` names the student, and `checks` are what policies elsewhere are compared
    with. `vocab_size` counts the rows that the tokenizer uses. `prompts` are those to train on; `overlong` of all were
    cut or dropped. `views` are those of policies that do not read prompts as `student_view` does; `rendered` is what
    each makes of them, that of the student under an empty name. `held_out` are prompts to watch."""

    source: str
    graph: PolicyGraph
    checks: Checks
    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    prompts: Dataset
    overlong: int
    student_view: PromptView
    views: PromptViews
    rendered: Mapping[str, Rendered]
    held_out: Sequence[HeldOut] = ()

    @property
    def longest_prompt(self) -> int:
        """In tokens, under any view."""
        return max(max(each.lengths) for each in self.rendered.values())

    @property
    def view_marks(self) -> dict[str, str]:
        """How policies read the prompts that do not read them as the student does, and a hash of what they read."""
        return {name: f"{view.view} ({self.rendered[name].mark})" for name, view in self.views.items()}

    @property
    def longest(self) -> int:
        """The most tokens of a prompt and its response."""
        return self.checks.longest

    @cached_property
    def prompt_hash(self) -> str:
        return prompt_hash(self.prompts)


def graph_of(model: Any, teachers: Mapping[str, Any], reference: Any, args: TrustMOPDConfig) -> PolicyGraph:
    """The frozen policies of a run, from the arguments of its trainer."""
    return resolve(
        teachers,
        reference,
        model,
        placement=args.teacher_placement,
        engine=args.teacher_engine,
        quantization=args.teacher_quantization,
        with_reference=args.needs_reference,
        with_initial=args.rules.target.needs_initial,
        only=args.single_teacher if args.rules.allocation.rule == "single" else None,
    )


def check_ingredients(
    model: Any,
    graph: PolicyGraph,
    args: TrustMOPDConfig,
    prompts: Any,
    tokenizer: Any = None,
    eval_prompts: Any = None,
    tools: Any = None,
) -> Ingredients:
    check_environment(args)
    _check_places(graph, args)
    check_prompt_sets(prompts, eval_prompts, list(graph.teachers), args)
    if args.calibrates and args.calibration_path is not None:
        first_decides(partial(Calibration.load, args.calibration_path))  # it is compared once the models are loaded
    if args.rules.allocation.rule == "single" and not graph.used:
        raise ValueError(
            f"single_teacher = {args.single_teacher!r} is not in the pool ({', '.join(graph.teachers)}). Choose one of "
            "them."
        )
    source = str(model) if isinstance(model, (str, Path)) else model_id(model)
    tokenizer = _tokenizer(tokenizer, source, args)
    if tokenizer.chat_template is None and not isinstance(prompts[0]["prompt"], str):
        raise ValueError(
            f"the prompts are conversations, but the student's tokenizer ({source}) has no chat template "
            "to render them. Save the template that it was trained with beside it, or give prompts as plain text."
        )
    warn_of_prompts(prompts, tokenizer, list(graph.teachers), args)
    options = {"tools": tools or None, **(args.chat_template_kwargs or {})}
    student_view = PromptView("the student", tokenizer, options)
    rendered = {"": student_view.of_all(prompts)}
    assert args.max_completion_length is not None
    longest = min(max(rendered[""].lengths), args.max_prompt_length or _ANY) + args.max_completion_length
    facts = facts_of("the student", model, tokenizer=tokenizer, trust_remote_code=args.trust_remote_code)
    checks = Checks(facts, args.num_candidates, longest, args.allow_template_mismatch, bool(args.trust_remote_code))
    vocab_size, known = preflight(model, graph, checks)
    check_vllm_can_read(model, graph, args)
    views = views_of(graph, facts, known, options)
    sets = [prompts, *(eval_prompts.values() if isinstance(eval_prompts, Mapping) else filter(None, [eval_prompts]))]
    made = {view: [view.of_all(each) for each in sets] for view in dict.fromkeys(views.values())}
    for name, view in views.items():
        rendered[name] = made[view][0]
        if name in known:
            most = min(max(rendered[name].lengths), args.max_prompt_length or _ANY)
            check_positions(known[name], most + args.max_completion_length)
    if args.rules.rollouts.engine == VLLM:
        check_vllm_can_sample(model, args, longest)
    watched = [] if args.watching is None else all_succeed(partial(held_out, args, tokenizer, prompts, longest))
    fitted, overlong = fit_prompts(with_rows(prompts), {name: each.lengths for name, each in rendered.items()}, args)
    return Ingredients(
        source, graph, checks, tokenizer, vocab_size, fitted, overlong, student_view, views, rendered, watched
    )


def _tokenizer(given: Any, source: str, args: TrustMOPDConfig) -> PreTrainedTokenizerBase:
    if given is None:
        revision = (args.model_init_kwargs or {}).get("revision")
        return load_tokenizer(source, revision=revision, trust_remote_code=args.trust_remote_code)
    if not isinstance(given, PreTrainedTokenizerBase):
        raise ValueError(
            f"processing_class is a {type(given).__name__}; only text models, with a tokenizer, are supported."
        )
    return given


def _check_places(graph: PolicyGraph, args: TrustMOPDConfig) -> None:
    """Whether the policies can live where they are placed."""
    if (asked := graph.asked_for(SHARDED)) and args.world_size == 1:
        raise ValueError(
            f"{asked} needs several processes, but there is only one. Start several (torchrun, accelerate launch), or "
            "use resident or offload."
        )
    if not (asked := graph.asked_for(RAY)):
        return
    check_ray(asked)
    if args.ray_address is not None:
        check_address(args.ray_address)
        return
    gpus = {", ".join(each.names): each.gpus * each.replicas for each in graph.at(RAY) if each.gpus}
    if sum(gpus.values()) > (here := torch.cuda.device_count()):
        told = ", ".join(f"{names} {many:g}" for names, many in gpus.items())
        raise ValueError(
            f"the policies on Ray ask for more GPUs than the {here} of this machine ({told}, counting replicas). Lower "
            "gpus, leave it out where there are none, or give the ray_address of a cluster that has them."
        )
    if int(os.environ.get("LOCAL_WORLD_SIZE") or args.world_size) < args.world_size:
        raise ValueError(
            "ray_address = None starts a cluster on one machine, but the training processes are on several. Start one "
            "on all of them (docs/remote.md), and give its address."
        )


def check_trainable(student: Any) -> None:
    if not any(parameter.requires_grad for parameter in student.parameters()):
        raise ValueError(
            "the student has no trainable parameter (requires_grad is False for all), so nothing would be learnt. Call "
            "model.requires_grad_(True), or pass peft_config."
        )


def load_pool(
    given: Ingredients, student: Any, args: TrustMOPDConfig, accelerator: Accelerator, run_id: str
) -> TeacherPool:
    graph = given.graph
    if graph.at(OFFLOAD):
        # Before anyone takes its share.
        told = all_succeed(partial(_check_host_memory, given, student, args))
        if accelerator.is_local_main_process:
            logger.warning("%s.", told)
    # Sharding splits the student's tensors, so the pool needs a base of its own.
    share = accelerator.distributed_type not in (DistributedType.FSDP, DistributedType.DEEPSPEED)
    return build_pool(
        graph,
        student,
        device=accelerator.device,
        dtype=args.frozen_dtype,
        share=share,
        autocast_dtype=args.mixed_dtype,
        trust_remote_code=args.trust_remote_code,
        elsewhere=_on_ray(given, args, run_id) if graph.at(RAY) else None,
        vocab_size=given.vocab_size,
        views=given.view_marks,
    )


def _check_host_memory(given: Ingredients, student: Any, args: TrustMOPDConfig) -> str:
    asked = given.graph.asked_for(OFFLOAD)
    try:
        need = run_here(given.graph, student, args, None, given.longest_prompt)
    except UnknownMemory as error:
        return f"{asked} pins host memory; how much is not known: {error}"
    return need.check_host_memory(asked)


def _on_ray(given: Ingredients, args: TrustMOPDConfig, run_id: str) -> "RayPolicies":
    from trustmopd.policies.hosts.ray.actor import Terms
    from trustmopd.policies.hosts.ray.policies import RayPolicies

    terms = Terms(
        run_id=run_id,
        address=args.ray_address,
        limit=args.ray_timeout,
        dtype=args.frozen_dtype,
        autocast_dtype=args.mixed_dtype,
        trust_remote_code=args.trust_remote_code,
        vocab_size=given.vocab_size,
        may_use_gpus=not args.use_cpu,
        checks=given.checks,
        longest=min(given.longest_prompt, args.max_prompt_length or _ANY) + (args.max_completion_length or 0),
    )
    return RayPolicies(terms, decide=first_decides)
