"""`TrustMOPDConfig`: TRL's `DistillationConfig` with the paper's defaults and the method's own fields."""

import copy
import difflib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cache, wraps
from importlib.util import find_spec
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import torch
from transformers import GenerationConfig
from trl import DistillationConfig

from trustmopd.method.allocation import check_gamma
from trustmopd.rules import DISPLACEMENT, RULES, SCORES, TRUST
from trustmopd.teachers.spec import check_dtype

_ANY = float("inf")
#: Smallest and largest value; None passes where the type allows it.
_RANGES = {
    "num_candidates": (1, _ANY),
    "calibration_batches": (1, _ANY),
    "min_relative_mu": (0, 1),
    "global_batch_size": (1, _ANY),
    "per_device_train_batch_size": (1, _ANY),
    "max_prompt_length": (1, _ANY),
    "max_completion_length": (1, _ANY),
    "record_allocation_every": (0, _ANY),
    "top_p": (0, 1),
    "top_k": (-1, _ANY),
    "min_p": (0, 1),
    "warmup_steps": (0, _ANY),
    "weight_decay": (0, _ANY),
    "max_grad_norm": (0, _ANY),
    "save_total_limit": (1, _ANY),
    "dataloader_num_workers": (0, _ANY),
}
#: Fields that must be above 0, and what to do about it.
_POSITIVE = {
    "temperature": "Rollouts are sampled, and 0 would be greedy: the paper uses 0.6.",
    "distillation_temperature": "The paper uses 1.",
    "top_p": "1 keeps every token.",
    "repetition_penalty": "1 is none.",
    "learning_rate": "The paper uses 1e-6.",
    "num_train_epochs": "Set max_steps to go by steps.",
    "save_steps": "To save nothing, set save_strategy = 'no'.",
}


#: What a rollout has a field of its own for: given elsewhere, that field would say what did not happen.
_OF_ROLLOUTS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "cache_implementation")},
    **dict.fromkeys(("max_new_tokens", "max_length"), "max_completion_length"),
}


def _field(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class TrustMOPDConfig(DistillationConfig):
    """Every field of `transformers.TrainingArguments` and `trl.DistillationConfig`, and the ones below. Defaults are
    the paper's hyper-parameter table; `docs/configuration.md` explains each. `temperature` is of the rollouts alone:
    the scores and the loss use `distillation_temperature`."""

    # The method
    allocation: str | Callable = _field(TRUST, f"Who teaches: {', '.join(RULES)}, or a callable.")
    score: str | Callable = _field(DISPLACEMENT, f"What trust is measured by: {', '.join(SCORES)}, or a callable.")
    gamma: float = _field(7.0, "Exponent of the calibrated scores; larger concentrates the weights.")
    num_candidates: int = _field(128, "C: how many of the student's likeliest tokens scores, target and loss look at.")
    granularity: str = _field("token", "token, or response: each response's mean weights at all its tokens.")
    calibrated: bool = _field(True, "Divide scores by mu. False is the ablation without calibration.")
    calibration_path: str | None = _field(None, "An existing calibration.json to use instead of calibrating.")
    calibration_batches: int = _field(8, "Batches of global_batch_size rollouts to measure mu on.")
    min_relative_mu: float = _field(
        1e-3, "A teacher whose mu is below this share of the others' median is refused; 0 allows any."
    )
    single_teacher: str | None = _field(None, "allocation=single: the teacher's name.")
    domain_column: str | None = _field(
        "domain", "Column with the teacher's name; read by allocation=routed, else only recorded."
    )
    distillation_temperature: float = _field(1.0, "Softmax temperature of scores and loss.")

    # Prompts
    max_prompt_length: int | None = _field(4096, "Longest prompt in tokens; None for no limit.")
    prompt_truncation: str = _field("left", "A longer prompt is cut (left, right), dropped (drop), or refused (error).")

    # Teachers
    teacher_placement: str = _field("resident", "resident on the device, or offload: in host memory between passes.")
    teacher_dtype: str | None = _field(
        None, "dtype of teachers and reference; None: bfloat16 where the hardware has it."
    )
    allow_template_mismatch: bool = _field(
        False, "Turn a chat template or EOS difference from an error into a warning."
    )

    # Records
    record_allocation_every: int = _field(10, "Write token records of some rollouts every so many steps; 0 never.")
    run_dir: str | None = _field(None, "Where manifest, calibration, metrics and records go; None: output_dir.")

    # The paper's optimisation and rollouts
    global_batch_size: int = _field(64, "Prompts per step over all processes; accumulation follows unless it is set.")
    per_device_train_batch_size: int = _field(4, "Micro-batch per process.")
    gradient_accumulation_steps: int | None = _field(None, "None: global_batch_size / (micro-batch × processes).")
    max_steps: int = _field(116, "Optimisation steps.")
    learning_rate: float = _field(1e-6, "Peak learning rate.")
    lr_scheduler_type: str = _field("constant_with_warmup", "Constant after linear warm-up.")
    warmup_steps: float = _field(0.03, "Warm-up, as a share of the steps when below 1.")
    weight_decay: float = _field(0.0, "AdamW's weight decay.")
    max_grad_norm: float = _field(1.0, "Gradient clipping.")
    max_completion_length: int | None = _field(8192, "Longest response in tokens.")
    temperature: float = _field(0.6, "Rollout temperature.")
    logging_steps: float = _field(1, "Steps between two lines of metrics.")
    save_steps: float = _field(20, "Steps between two checkpoints.")
    save_total_limit: int | None = _field(2, "How many checkpoints to keep.")

    def __post_init__(self) -> None:
        for name in ("save_strategy", "eval_strategy", "logging_strategy"):
            if getattr(self, name) is False:  # YAML reads `no` as false
                setattr(self, name, "no")
        self._check_types()
        self._check_method()
        if self.bf16 is None:
            self.bf16 = not self.fp16 and has_bfloat16()
        self._derive_accumulation()
        if not torch.accelerator.is_available():
            self.dataloader_pin_memory = False  # memory is pinned for an accelerator; torch warns where there is none
        super().__post_init__()
        self._check_mappings()

    @property
    def scored(self) -> bool:
        """Whether the rule looks at scores at all."""
        return callable(self.allocation) or RULES[self.allocation].scored

    @property
    def needs_reference(self) -> bool:
        return self.scored and (callable(self.score) or callable(self.allocation) or SCORES[self.score].needs_reference)

    @property
    def is_papers_own(self) -> bool:
        """The paper's rule itself: the one that has a kernel of its own."""
        return (self.allocation, self.score, self.granularity) == (TRUST, DISPLACEMENT, "token")

    @property
    def calibrates(self) -> bool:
        return self.scored and self.calibrated

    def _check_types(self) -> None:
        """`bf16=maybe` is a slip, and so are `4.5` steps: said by name, before somebody computes with them."""
        for name, kinds in _simple_types().items():
            value = getattr(self, name)
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

    def _check_method(self) -> None:
        _choice("allocation", self.allocation, tuple(RULES))
        _choice("score", self.score, tuple(SCORES))
        _choice("granularity", self.granularity, ("token", "response"))
        _choice("prompt_truncation", self.prompt_truncation, ("left", "right", "drop", "error"))
        _choice("teacher_placement", self.teacher_placement, ("resident", "offload"))
        check_gamma(self.gamma)
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                limits = f"at least {low:g}" if high == _ANY else f"from {low:g} to {high:g}"
                optional = ", or None for no limit" if NoneType in _simple_types()[name] else ""
                optional = "" if name == "max_completion_length" else optional
                raise ValueError(f"{name} = {value!r} must be {limits}{optional}.")
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < _ANY:
                raise ValueError(f"{name} = {getattr(self, name)!r} must be above 0, and finite. {_POSITIVE[name]}")
        if self.max_steps == 0 or self.max_steps < -1:
            raise ValueError(
                f"max_steps = {self.max_steps} is no number of steps. Give at least 1, or -1 to go by num_train_epochs."
            )
        if self.max_steps > 0 and self.num_train_epochs != DistillationConfig.num_train_epochs:
            raise ValueError(
                f"num_train_epochs = {self.num_train_epochs:g} would have no effect: max_steps = {self.max_steps} "
                "ends the run. Set max_steps = -1 to go by epochs, or leave num_train_epochs unset."
            )
        if self.gradient_accumulation_steps is not None and self.gradient_accumulation_steps < 1:
            raise ValueError(
                f"gradient_accumulation_steps = {self.gradient_accumulation_steps} must be at least 1; None derives it."
            )
        if self.max_completion_length is None:
            raise ValueError("max_completion_length = None leaves responses without a limit. Give one, in tokens.")
        if self.num_candidates == 1 and self.scored and not callable(self.score) and SCORES[self.score].compares:
            raise ValueError(
                f"num_candidates = 1 leaves nothing to compare: on one candidate every {self.score} score is 0. Take "
                "at least 2; the paper uses 128."
            )
        if isinstance(self.teacher_dtype, torch.dtype):
            self.teacher_dtype = str(self.teacher_dtype).removeprefix("torch.")
        check_dtype("teacher_dtype", self.teacher_dtype, auto=False)
        if self.allocation == "single" and self.single_teacher is None:
            raise ValueError("allocation = 'single' needs single_teacher, the name of the one teacher to learn from.")
        if self.remove_unused_columns:
            raise ValueError(
                "remove_unused_columns = True would drop id, domain and row of every prompt before they reach routing, "
                "random weights and records. Leave it unset."
            )
        if self.beta != 1.0:
            raise ValueError(
                f"beta = {self.beta} would have no effect: the objective is reverse KL (beta = 1). Leave beta unset, "
                "or use TRL's DistillationTrainer for another divergence."
            )
        if isinstance(self.deepspeed, str):
            _check_json("deepspeed", self.deepspeed)
        if self.deepspeed is not None and find_spec("deepspeed") is None:
            raise ValueError(
                f"deepspeed = {self.deepspeed!r}, but DeepSpeed is not installed. Install it (pip install deepspeed), "
                "or leave it unset."
            )
        if isinstance(self.fsdp_config, str):
            _check_json("fsdp_config", self.fsdp_config)
        if self.resume_from_checkpoint is not None:
            raise ValueError(
                f"resume_from_checkpoint = {self.resume_from_checkpoint!r} would have no effect here: resume with "
                "`trustmopd train RECIPE --resume`, or in Python with trainer.train(resume_from_checkpoint=...)."
            )
        if self.data_seed is not None:
            raise ValueError(f"data_seed = {self.data_seed} would have no effect: the prompts' order follows `seed`.")
        for name in ("teacher_model_name_or_path", "teacher_model_revision", "teacher_model_init_kwargs"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} = {getattr(self, name)!r} would have no effect: teachers are given to "
                    'TrustMOPDTrainer, as teachers={"name": "checkpoint"} or Teacher(...) with revision and dtype.'
                )

    def _check_mappings(self) -> None:
        """Only now: transformers turns some JSON texts into mappings."""
        for name in ("model_init_kwargs", "generation_kwargs", "chat_template_kwargs"):
            if not isinstance(getattr(self, name), (dict, NoneType)):
                raise ValueError(f"{name} = {getattr(self, name)!r} should be a mapping, as {{key: value}}, or None.")
        loading = self.model_init_kwargs or {}
        for name in {"dtype", "torch_dtype"} & loading.keys():
            check_dtype(f"model_init_kwargs.{name}", loading[name])
        for name, value in (self.generation_kwargs or {}).items():
            given = f"generation_kwargs.{name} = {value!r}"
            if name in _OF_ROLLOUTS:
                raise ValueError(f"{given} has a field of its own: set {_OF_ROLLOUTS[name]}.")
            if name == "do_sample" and not value:
                raise ValueError(f"{given} would be greedy, but rollouts are sampled. Remove it.")
            if not self.use_vllm and not hasattr(GenerationConfig(), name):
                raise ValueError(f"{given}: transformers.GenerationConfig has no such field. Correct its name.")

    def _derive_accumulation(self) -> None:
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        per_pass = self.per_device_train_batch_size * world_size
        if self.gradient_accumulation_steps is not None:
            self.global_batch_size = per_pass * self.gradient_accumulation_steps
            return
        if self.global_batch_size % per_pass:
            raise ValueError(
                f"global_batch_size = {self.global_batch_size} is not a multiple of per_device_train_batch_size × "
                f"processes = {self.per_device_train_batch_size} × {world_size}. Change one of them, or set "
                "gradient_accumulation_steps."
            )
        self.gradient_accumulation_steps = self.global_batch_size // per_pass

    def __getstate__(self) -> dict[str, Any]:
        """Checkpoints pickle their arguments; a rule given as a function goes in by name."""
        return {
            key: rule_name(value) if key in ("allocation", "score") else value for key, value in self.__dict__.items()
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> "TrustMOPDConfig":
        copied = object.__new__(type(self))
        copied.__dict__.update({key: copy.deepcopy(value, memo) for key, value in self.__dict__.items()})
        return copied

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "allocation": rule_name(self.allocation), "score": rule_name(self.score)}


@cache
def _simple_types() -> dict[str, set[type]]:
    """The types of the fields that hold booleans and numbers."""
    hints = get_type_hints(TrustMOPDConfig)
    kinds = {each.name: set(get_args(hints[each.name]) or [hints[each.name]]) for each in fields(TrustMOPDConfig)}
    return {name: types for name, types in kinds.items() if types <= {bool, int, float, NoneType}}


def unknown_field(names: Iterable[str]) -> str | None:
    """What to say of the first name that is no field, if there is one."""
    known = [each.name for each in fields(TrustMOPDConfig) if each.init]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            remedy = f"Did you mean `{close[0]}`?" if close else "docs/configuration.md lists them."
            return f"{name} is no field of TrustMOPDConfig. {remedy}"
    return None


def _checking_names(init: Callable) -> Callable:
    """Python's own error about an unexpected argument names none that would do."""

    @wraps(init)
    def checked(self: TrustMOPDConfig, *args: Any, **given: Any) -> None:
        if problem := unknown_field(given):
            raise TypeError(problem)
        init(self, *args, **given)

    return checked


TrustMOPDConfig.__init__ = _checking_names(TrustMOPDConfig.__init__)  # type: ignore[method-assign]


def rule_name(rule: str | Callable) -> str:
    return rule if isinstance(rule, str) else f"{rule.__module__}.{getattr(rule, '__qualname__', type(rule).__name__)}"


def has_bfloat16() -> bool:
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return torch.xpu.is_available()


def _check_json(name: str, path: str) -> None:
    try:
        json.loads(path if path.lstrip().startswith("{") else Path(path).read_text(encoding="utf-8"))
    except OSError:
        raise ValueError(f"{name} = {path!r}: there is no such file. Check the path.") from None
    except ValueError as error:
        raise ValueError(f"{name} = {path!r} is no JSON file ({error}). Correct it.") from None


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices and not (callable(value) and name in ("allocation", "score")):
        raise ValueError(f"{name} = {value!r} is unknown. Choose from {', '.join(choices)}.")
