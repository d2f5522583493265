"""What a configuration needs from this machine: installed packages, processes that see each other."""

import os
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from transformers import Trainer, get_scheduler
from transformers.integrations import get_available_reporting_integrations
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from trustmopd.planning.launching import asked_engine
from trustmopd.recipe.rollout_engines import VLLM
from trustmopd.rollouts.vllm_engine import check_port, check_vllm
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
