"""Checks of a configuration, before anything is loaded. Errors name the field and its value."""

import json
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import torch
from transformers import GenerationConfig

from trustmopd.method.allocation import check_gamma
from trustmopd.policies.teacher import check_dtype
from trustmopd.recipe.rules import SCORES, Grouped, Shift
from trustmopd.recipe.teacher_source import PLACES, POLICY_ENGINES, QUANTIZATIONS
from trustmopd.runs.guard import actions_of
from trustmopd.util.messages import choose_from

if TYPE_CHECKING:
    from trustmopd.training.config import TrustMOPDConfig

_ANY = float("inf")
_A_YEAR = 365 * 86_400
#: Smallest and largest value. None is accepted if the type allows it.
_RANGES = {
    "num_candidates": (1, _ANY),
    "calibration_batches": (1, _ANY),
    "min_relative_mu": (0, 1),
    "global_batch_size": (1, _ANY),
    "num_generations": (1, _ANY),
    "per_device_train_batch_size": (1, _ANY),
    "gradient_accumulation_steps": (1, _ANY),
    "max_tokens_per_micro_batch": (1, _ANY),
    "max_prompt_length": (1, _ANY),
    "max_completion_length": (1, _ANY),
    "answers_on_device_gib": (0, _ANY),
    "record_allocation_every": (0, _ANY),
    "top_p": (0, 1),
    "top_k": (-1, _ANY),
    "min_p": (0, 1),
    "warmup_steps": (0, _ANY),
    "weight_decay": (0, _ANY),
    "max_grad_norm": (0, _ANY),
    "save_total_limit": (1, _ANY),
    "dataloader_num_workers": (0, _ANY),
    "vllm_gpu_memory_utilization": (0, 1),
    "vllm_max_model_length": (1, _ANY),
    "vllm_tensor_parallel_size": (1, _ANY),
    "vllm_server_port": (1, 65535),
    "vllm_group_port": (1, 65535),
    "rollout_timeout": (0, _A_YEAR),
}
#: Fields that must be above 0, and a hint for each.
_POSITIVE = {
    "temperature": "0 would be greedy decoding. The paper uses 0.6.",
    "distillation_temperature": "The paper uses 1.",
    "top_p": "1 keeps every token.",
    "repetition_penalty": "1 means no penalty.",
    "learning_rate": "The paper uses 1e-6.",
    "num_train_epochs": "To set the length in steps, use max_steps.",
    "rollout_timeout": "In seconds: an hour is 3600.",
    "ray_timeout": "In seconds: half an hour is 1800.",
    "logprob_gap_limit": "In nats; bfloat16 rounding gives about 0.02.",
    "vllm_gpu_memory_utilization": "It is vLLM's share of the GPU; 0.3 unless set.",
    "save_steps": "To save nothing, set save_strategy = 'no'.",
}


#: Fields of TRL and transformers that must keep their default, and why.
_UNSET = {
    "remove_unused_columns": "routing, random weights and records need the columns id, domain and row",
    "beta": "the objective is reverse KL (beta = 1). For another divergence, use TRL's DistillationTrainer",
    "data_seed": "the order of the prompts follows `seed`",
    **dict.fromkeys(
        ("teacher_model_name_or_path", "teacher_model_revision", "teacher_model_init_kwargs"),
        'pass the teachers to TrustMOPDTrainer, as teachers={"name": "checkpoint"} or as Teacher(...)',
    ),
}
#: Settings of `generate` that have a field of their own.
_OF_ROLLOUTS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "cache_implementation")},
    **dict.fromkeys(("max_new_tokens", "max_length"), "max_completion_length"),
}


def check_types(args: "TrustMOPDConfig") -> None:
    """Refuse values such as `bf16=maybe` or `4.5` steps."""
    for name, kinds in _simple_types().items():
        value = getattr(args, name)
        if value is None and NoneType in kinds:
            continue
        if bool in kinds:
            fits, wanted = isinstance(value, bool), "true or false"
        else:
            number = Integral if float not in kinds else Real
            fits = isinstance(value, number) and not isinstance(value, bool)
            wanted = "a whole number" if float not in kinds else "a number"
        if not fits:
            optional = ", or None" if NoneType in kinds and bool not in kinds else ""
            raise ValueError(f"{name} = {value!r} should be {wanted}{optional}.")


def check_values(args: "TrustMOPDConfig") -> None:
    _choice("score", args.score, tuple(SCORES))
    _choice("granularity", args.granularity, ("token", "response"))
    _choice("prompt_truncation", args.prompt_truncation, ("left", "right", "drop", "error"))
    _choice("teacher_placement", args.teacher_placement, PLACES)
    _choice("teacher_engine", args.teacher_engine, POLICY_ENGINES)
    if args.teacher_quantization is not None:
        _choice("teacher_quantization", args.teacher_quantization, QUANTIZATIONS)
    _choice("vllm_mode", args.vllm_mode, ("colocate", "server"))
    _choice("vllm_model_impl", args.vllm_model_impl, ("vllm", "transformers", "auto"))
    if args.vllm_server_base_url and not args.vllm_server_base_url.startswith(("http://", "https://")):
        raise ValueError(
            f"vllm_server_base_url = {args.vllm_server_base_url!r} is not a URL. Write it as http://localhost:8000."
        )
    check_gamma(args.gamma)
    actions_of(args.guard)
    for name, (low, high) in _RANGES.items():
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            limits = f"at least {low:g}" if high == _ANY else f"from {low:g} to {high:g}"
            optional = ", or None" if NoneType in _simple_types()[name] and name != "max_completion_length" else ""
            raise ValueError(f"{name} = {value!r} must be {limits}{optional}.")
    for name in _POSITIVE:
        if not 0 < getattr(args, name) < _ANY:
            raise ValueError(f"{name} = {getattr(args, name)!r} must be above 0, and finite. {_POSITIVE[name]}")
    if args.max_steps == 0 or args.max_steps < -1:
        raise ValueError(
            f"max_steps = {args.max_steps} is not a number of steps. Give at least 1, or -1 to use num_train_epochs."
        )
    if args.max_steps > 0 and args.num_train_epochs != type(args).num_train_epochs:
        raise ValueError(
            f"num_train_epochs = {args.num_train_epochs:g} would have no effect: max_steps = {args.max_steps} "
            "ends the run. Set max_steps = -1 to use epochs, or leave num_train_epochs unset."
        )
    if args.max_completion_length is None:
        raise ValueError("max_completion_length = None: responses need a limit. Give one, in tokens.")
    if args.num_candidates == 1 and args.scored and not callable(args.score) and SCORES[args.score].compares:
        raise ValueError(
            f"num_candidates = 1 leaves nothing to compare: with one candidate every {args.score} score is 0. Use at "
            "least 2; the paper uses 128."
        )
    if isinstance(args.teacher_dtype, torch.dtype):
        args.teacher_dtype = str(args.teacher_dtype).removeprefix("torch.")
    check_dtype("teacher_dtype", args.teacher_dtype, auto=False)
    if args.rules.allocation.rule == "single" and args.single_teacher is None:
        raise ValueError("allocation = 'single' needs single_teacher, the name of the one teacher to learn from.")
    _check_parts(args)
    if args.watching is not None and args.watching.save_best:
        _check_save_best(args)
    for name, reason in _UNSET.items():
        if (value := getattr(args, name)) != getattr(type(args), name):
            raise ValueError(f"{name} = {value!r} cannot be used here: {reason}. Leave {name} unset.")
    if isinstance(args.deepspeed, str):
        _check_json("deepspeed", args.deepspeed)
    if args.deepspeed is not None and find_spec("deepspeed") is None:
        raise ValueError(
            f"deepspeed = {args.deepspeed!r}, but DeepSpeed is not installed. Install it (pip install "
            "'trustmopd[deepspeed]'), or leave it unset."
        )
    if isinstance(args.fsdp_config, str):
        _check_json("fsdp_config", args.fsdp_config)


def _check_parts(args: "TrustMOPDConfig") -> None:
    """What one part of the objective needs of another."""
    allocation, target, emphasis = args.rules.allocation.rule, args.rules.target, args.rules.emphasis
    if isinstance(target, Shift) and not target.weighted and allocation == "routed":
        raise ValueError(
            "target = 'shift' adds the changes of all teachers, but allocation = 'routed' asks one of them. Set "
            "target.weighted = true, or allocation = 'uniform'."
        )
    if isinstance(emphasis, Grouped) and emphasis.by == "label" and args.domain_column is None:
        raise ValueError(
            f"emphasis = {emphasis.rule!r} goes by the prompts' labels, but domain_column = None. Name their column, "
            "or set emphasis.by = leader."
        )


def _check_save_best(args: "TrustMOPDConfig") -> None:
    """The best checkpoint is kept beside the newest ones, and scored beside the last."""
    if args.save_strategy == "no":
        raise ValueError("watch.save_best = True, but save_strategy = 'no' saves nothing. Change one of them.")
    if args.save_total_limit == 1:
        raise ValueError(
            "watch.save_best = True, but save_total_limit = 1 would keep the best checkpoint alone, and not the last. "
            "Raise it to 2."
        )
    if args.load_best_model_at_end or args.metric_for_best_model is not None:
        raise ValueError(
            "watch.save_best = True, but load_best_model_at_end and metric_for_best_model choose by an eval_dataset. "
            "Leave them, or save_best, unset."
        )


def check_mappings(args: "TrustMOPDConfig") -> None:
    """After transformers has turned JSON texts into mappings."""
    for name in ("model_init_kwargs", "generation_kwargs", "chat_template_kwargs"):
        if not isinstance(getattr(args, name), (dict, NoneType)):
            raise ValueError(f"{name} = {getattr(args, name)!r} should be a mapping, as {{key: value}}, or None.")
    loading = args.model_init_kwargs or {}
    if "torch_dtype" in loading:
        raise ValueError(
            f"model_init_kwargs.torch_dtype = {loading['torch_dtype']!r} would have no effect: TRL reads dtype. Set "
            "model_init_kwargs.dtype instead."
        )
    check_dtype("model_init_kwargs.dtype", loading.get("dtype"))
    for name, value in (args.generation_kwargs or {}).items():
        given = f"generation_kwargs.{name} = {value!r}"
        if name in _OF_ROLLOUTS:
            raise ValueError(f"{given} has a field of its own. Set {_OF_ROLLOUTS[name]} instead.")
        if name == "do_sample" and not value:
            raise ValueError(f"{given} would be greedy, but rollouts are sampled. Remove it.")
        if args.rules.rollouts.engine == "transformers" and not hasattr(GenerationConfig(), name):
            raise ValueError(f"{given}: transformers.GenerationConfig has no such field. Correct its name.")


@cache
def _simple_types() -> dict[str, set[type]]:
    """The types of the fields that hold booleans and numbers."""
    from trustmopd.training.config import TrustMOPDConfig as config  # which imports this module

    hints = get_type_hints(config)
    kinds = {each.name: set(get_args(hints[each.name]) or [hints[each.name]]) for each in fields(config)}
    return {name: types for name, types in kinds.items() if types <= {bool, int, float, NoneType}}


def _check_json(name: str, path: str) -> None:
    try:
        json.loads(path if path.lstrip().startswith("{") else Path(path).read_text(encoding="utf-8"))
    except OSError:
        raise ValueError(f"{name} = {path!r}: there is no such file. Check the path.") from None
    except ValueError as error:
        raise ValueError(f"{name} = {path!r} is not a JSON file ({error}). Correct it.") from None


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices and not (callable(value) and name == "score"):
        raise ValueError(f"{name} = {value!r} is unknown. {choose_from(choices, value)}.")
