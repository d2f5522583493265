"""What a configuration needs from this machine: installed packages, processes that see each other, a vLLM that can
sample."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, Trainer, get_scheduler
from transformers.integrations import get_available_reporting_integrations
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from trustmopd.planning.launching import asked_engine, check_joined
from trustmopd.policies.preflight.model_facts import positions_of
from trustmopd.recipe.rollout_engines import VLLM
from trustmopd.rollouts.vllm_engine import can_sleep, check_architecture, check_port, check_vllm
from trustmopd.runs.layout import METRICS
from trustmopd.training.config import TrustMOPDConfig


def check_environment(args: TrustMOPDConfig) -> None:
    """Check that every package the configuration needs is installed, and that the processes see each other, before the
    models are loaded."""
    check_launch(args)
    _check_trackers([args.report_to] if isinstance(args.report_to, str) else args.report_to or [])
    if args.rules.rollouts.engine == VLLM:
        if (engine := asked_engine(args)).startswith("ZeRO"):
            raise ValueError(
                f"rollouts.engine = vllm is not supported with DeepSpeed ({engine}): the two were never tested "
                "together. Use FSDP2 (recipes/accelerate/fsdp2.yaml), or set rollouts.engine = transformers."
            )
        check_vllm("rollouts.engine = vllm", "set rollouts.engine = transformers")
        if args.vllm_mode == "server":
            check_port(args.vllm_group_port)
    if args.use_liger_kernel and find_spec("liger_kernel") is None:
        raise ValueError(
            "use_liger_kernel = True, but liger-kernel is not installed. Install it, or leave this unset: the fused "
            "heads here do not need it."
        )
    _check_optimizer(args)


def check_vllm_can_sample(model: Any, args: TrustMOPDConfig, longest: int) -> None:
    """`longest` is the most tokens that a prompt and its response have together."""
    named = isinstance(model, (str, Path))
    config = AutoConfig.from_pretrained(model, trust_remote_code=args.trust_remote_code) if named else model.config
    source = str(model) if named else model.name_or_path
    if not source:
        raise ValueError(
            "vLLM loads the student from its path, but this model object has none. Save it with its "
            "tokenizer (save_pretrained), and give the path."
        )
    if args.vllm_mode == "colocate":
        start = "Start a multiple of it (accelerate launch --num_processes)"
        check_joined(args.vllm_tensor_parallel_size, args.world_size, start)
        if args.vllm_enable_sleep_mode and not can_sleep():
            raise ValueError("vllm_enable_sleep_mode = True, but vLLM can only sleep on a GPU. Set it to False here.")
    check_architecture((config.architectures or [type(model).__name__])[0], source, args.vllm_model_impl)
    if args.vllm_max_model_length is not None and args.vllm_max_model_length < longest:
        raise ValueError(
            f"vllm_max_model_length = {args.vllm_max_model_length} is less than {longest}, the tokens of the longest "
            "prompt plus max_completion_length, so responses would be cut. Raise it, or leave it unset."
        )
    positions = positions_of(config.get_text_config())
    if positions is not None and (args.vllm_max_model_length or 0) > positions:
        raise ValueError(
            f"vllm_max_model_length = {args.vllm_max_model_length}, but {source} has {positions} positions. Lower it, "
            "or leave it unset."
        )


def _check_optimizer(args: TrustMOPDConfig) -> None:
    """Try optimizer and scheduler on one weight, before the models are loaded."""
    try:
        kind, options = Trainer.get_optimizer_cls_and_kwargs(args)
    except ImportError as error:
        raise ValueError(f"optim = {args.optim.value!r} cannot be used here: {error}") from error
    except ValueError:
        return  # GaLore and others need the model
    if not kind.__module__.startswith("torch.optim"):
        return  # others may need a GPU, or the model
    try:
        optimizer = kind([torch.nn.Parameter(torch.zeros(1))], **options)
        get_scheduler(args.lr_scheduler_type, optimizer, 1, 2, args.lr_scheduler_kwargs)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the settings of optim or lr_scheduler_type are invalid: {error}. Check adam_beta1, adam_beta2, "
            f"adam_epsilon, optim_args, and lr_scheduler_kwargs = {args.lr_scheduler_kwargs}."
        ) from error


def _check_trackers(report_to: Sequence[str]) -> None:
    for tracker in report_to:
        if tracker not in INTEGRATION_TO_CALLBACK:
            raise ValueError(
                f"report_to = {tracker!r} is not a tracker that transformers supports. Choose from "
                f"{', '.join(sorted(INTEGRATION_TO_CALLBACK))}, or none."
            )
        if tracker not in (*get_available_reporting_integrations(), "flyte"):
            raise ValueError(
                f"report_to = {tracker!r}, but {tracker} is not installed. Install it (pip install {tracker}), or set "
                f"report_to = none: {METRICS} always has every metric."
            )


def check_launch(args: TrustMOPDConfig) -> None:
    """Refuse a process that a launcher started with others and that does not see them: it would train alone, on its
    share of every batch."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and args.world_size == 1:
        raise ValueError(
            f"the launcher started {started} processes, but this one sees no other: each would train alone, on a part "
            "of every batch. Without GPUs, set use_cpu=True (in a recipe: training.use_cpu=true)."
        )
