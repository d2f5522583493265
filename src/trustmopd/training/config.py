"""`TrustMOPDConfig`: TRL's `DistillationConfig` with the paper's defaults and the method's own fields."""

import copy
import difflib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import torch.distributed as dist
from trl import DistillationConfig

from trustmopd.recipe.recipe import Watch
from trustmopd.recipe.rollout_engines import ROLLOUTS
from trustmopd.recipe.rules import DISPLACEMENT, EMPHASES, EVEN, MEAN, PARTS, RULES, SCORES, TARGETS, TRUST
from trustmopd.recipe.sections import check_fields
from trustmopd.runs.guard import ACTIONS, NAMES, WARN
from trustmopd.training.config_checks import check_mappings, check_types, check_values
from trustmopd.training.variants import Variants, resolve_variants, rule_name


def _field(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class TrustMOPDConfig(DistillationConfig):
    """Every field of `transformers.TrainingArguments` and `trl.DistillationConfig`, and the ones below. Defaults are
    the paper's hyper-parameter table; `docs/configuration.md` explains each. `temperature` is for rollouts only:
    scores and loss use `distillation_temperature`."""

    # The method
    allocation: str | dict | Callable = _field(
        TRUST, f"How teachers are weighted: {', '.join(RULES)}, with parameters as {{rule: …}}; or a callable."
    )
    target: str | dict = _field(MEAN, f"What the student is pulled to: {', '.join(TARGETS)}.")
    emphasis: str | dict = _field(EVEN, f"How much each token counts: {', '.join(EMPHASES)}.")
    score: str | Callable = _field(DISPLACEMENT, f"What trust is measured by: {', '.join(SCORES)}, or a callable.")
    gamma: float = _field(7.0, "Exponent of the calibrated scores; larger concentrates the weights.")
    num_candidates: int = _field(128, "C: number of the student's likeliest tokens that scores, target and loss use.")
    granularity: str = _field("token", "token, or response: each response's mean weights at all its tokens.")
    calibrated: bool = _field(True, "Divide scores by mu. False is the ablation without calibration.")
    calibration_path: str | None = _field(None, "The file of an existing calibration to use instead of calibrating.")
    calibration_batches: int = _field(8, "Batches of global_batch_size rollouts to measure mu on.")
    min_relative_mu: float = _field(
        1e-3, "A teacher whose mu is below this share of the others' median is refused; 0 allows any."
    )
    single_teacher: str | None = _field(None, "allocation=single: the teacher's name.")
    domain_column: str | None = _field(
        "domain", "Column with the teacher's name; read by allocation=routed, else only recorded."
    )
    distillation_temperature: float = _field(1.0, "Softmax temperature of scores and loss.")
    mask_reasoning: bool = _field(False, "Leave the student's <think> … </think> block out of scores and loss.")

    # Prompts
    max_prompt_length: int | None = _field(4096, "Longest prompt in tokens; None for no limit.")
    prompt_truncation: str = _field("left", "A longer prompt is cut (left, right), dropped (drop) or refused (error).")

    # Teachers
    teacher_placement: str = _field(
        "resident",
        "resident on the device, offload: in host memory between passes, sharded: spread over the processes, or ray: "
        "in actors on other GPUs and machines.",
    )
    teacher_dtype: str | None = _field(
        None, "dtype of teachers and reference; None: bfloat16 where the hardware has it."
    )
    allow_template_mismatch: bool = _field(
        False, "Turn a chat template or EOS difference from an error into a warning."
    )
    teacher_engine: str = _field(
        "transformers", "Policies on Ray: what computes their hidden states, transformers or vllm."
    )
    teacher_quantization: str | None = _field(None, "With vllm: fp8, or None for weights as they are.")
    ray_address: str | None = _field(
        None, "Teachers on Ray: the cluster's address; None: start one on this machine, and stop it afterwards."
    )
    ray_timeout: float = _field(1800.0, "Teachers on Ray: most seconds until one has answered, with a restart.")

    # Reading
    max_tokens_per_micro_batch: int | None = _field(
        None, "Process rows of similar length together, up to this many tokens in a pass; None: micro-batches by rows."
    )
    answers_on_device_gib: float = _field(
        4.0, "Hidden states of frozen policies beyond this size are kept in pinned host memory."
    )

    # Rollouts
    rollouts: str | dict | None = _field(
        None, f"What samples them: {', '.join(ROLLOUTS)}, with parameters as {{engine: …}}; None: as use_vllm says."
    )
    rollout_timeout: float = _field(
        3600.0, "With use_vllm: most seconds for one batch of rollouts; then the run stops."
    )
    logprob_gap_limit: float = _field(
        0.3, "With use_vllm: largest mean difference, in nats, between its log-probs and the student's in a step."
    )

    # Accuracy while training
    watch: dict | None = _field(
        None, "What is graded meanwhile, as {benchmarks: […], every: 20, prompts: 64, save_best: false}; None: nothing."
    )

    # Records
    record_allocation_every: int = _field(10, "Write token records of some rollouts every this many steps; 0: never.")
    run_dir: str | None = _field(None, "Where manifest, calibration, metrics and records go; None: output_dir.")

    # Health
    guard: str | dict = _field(WARN, f"What the guard does: {', '.join(ACTIONS)}; or by rule: {', '.join(NAMES)}.")

    # The paper's optimization and rollouts
    global_batch_size: int = _field(64, "Responses per step over all processes; accumulation follows unless set.")
    num_generations: int = _field(1, "Responses to each prompt of a step.")
    per_device_train_batch_size: int = _field(4, "Micro-batch per process.")
    gradient_accumulation_steps: int | None = _field(None, "None: global_batch_size / (micro-batch × processes).")
    max_steps: int = _field(116, "Optimization steps.")
    learning_rate: float = _field(1e-6, "Peak learning rate.")
    lr_scheduler_type: str = _field("constant_with_warmup", "Constant after linear warm-up.")
    warmup_steps: float = _field(0.03, "Warm-up, as a share of the steps when below 1.")
    weight_decay: float = _field(0.0, "AdamW's weight decay.")
    max_grad_norm: float = _field(1.0, "Gradient clipping.")
    max_completion_length: int | None = _field(8192, "Longest response in tokens.")
    temperature: float = _field(0.6, "Rollout temperature.")
    disable_dropout: bool = _field(True, "Train the student without dropout, as rollouts are sampled.")
    logging_steps: float = _field(1, "Steps between two lines of metrics.")
    save_steps: float = _field(20, "Steps between two checkpoints.")
    save_total_limit: int | None = _field(2, "How many checkpoints to keep.")

    def __post_init__(self) -> None:
        for name in ("save_strategy", "eval_strategy", "logging_strategy"):
            if getattr(self, name) is False:  # YAML reads `no` as false
                setattr(self, name, "no")
        self._variants = resolve_variants(self)
        self._watching = None if self.watch is None else check_fields(Watch, self.watch, "watch")
        check_types(self)
        check_values(self)
        self._derive_precision()
        self._derive_accumulation()
        if not torch.accelerator.is_available():
            self.dataloader_pin_memory = False  # without an accelerator torch only warns
        super().__post_init__()
        check_mappings(self)
        if self.use_cpu and dist.is_available() and dist.is_initialized():
            # transformers sets this for accelerators only. A CPU process would wait half an hour for one that hangs.
            dist.distributed_c10d._set_pg_timeout(self.ddp_timeout_delta, dist.group.WORLD)

    @property
    def rules(self) -> Variants:
        """What varies, each as one value with its parameters."""
        return self._variants

    @property
    def watching(self) -> Watch | None:
        """`watch`, checked."""
        return self._watching

    @property
    def prompts_per_step(self) -> int:
        return self.global_batch_size // self.num_generations

    @property
    def scored(self) -> bool:
        """Whether the rule uses scores."""
        return self.rules.allocation.scored

    @property
    def needs_reference(self) -> bool:
        if self.rules.allocation.needs_reference or self.rules.target.needs_reference:
            return True
        return self.scored and (callable(self.score) or callable(self.allocation) or SCORES[self.score].needs_reference)

    @property
    def is_papers_own(self) -> bool:
        """The paper's objective, which has a kernel of its own."""
        parts = self.rules
        own = (parts.allocation.rule, self.score, self.granularity) == (TRUST, DISPLACEMENT, "token")
        return own and (parts.target.rule, parts.emphasis.rule) == (MEAN, EVEN)

    @property
    def calibrates(self) -> bool:
        return self.scored and self.calibrated

    @property
    def mixed_dtype(self) -> torch.dtype | None:
        """The dtype of mixed precision; None without it."""
        return torch.bfloat16 if self.bf16 else torch.float16 if self.fp16 else None

    @property
    def frozen_dtype(self) -> torch.dtype:
        """The dtype of teachers and references that have none of their own."""
        return getattr(torch, self.teacher_dtype) if self.teacher_dtype else self.mixed_dtype or torch.float32

    def _derive_precision(self) -> None:
        """bfloat16 where the hardware has it, unless the launcher or a field says otherwise; they must agree, since
        accelerate would follow the launcher, and frozen models and vLLM the fields."""
        launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        if self.bf16 is None:
            if not self.fp16 and launched == "fp16":
                self.fp16 = True
            self.bf16 = not self.fp16 and (launched == "bf16" or has_bfloat16())
        asked = "bf16" if self.bf16 else "fp16" if self.fp16 else "no"
        if launched in ("bf16", "fp16") and asked != launched:
            raise ValueError(
                f"accelerate was launched with mixed precision {launched}, but bf16 = {self.bf16} and fp16 = "
                f"{self.fp16}. Set {launched} = True, or launch with --mixed_precision {asked}."
            )

    def _derive_accumulation(self) -> None:
        """Split the prompts of a step. Under a token budget, TRL sees all prompts of a process as one micro-batch, and
        `step/token_budget.py` processes it in several passes."""
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if self.gradient_accumulation_steps is not None:
            self.global_batch_size = self.per_device_train_batch_size * world_size * self.gradient_accumulation_steps
        by_tokens = self.max_tokens_per_micro_batch is not None
        rows = 1 if by_tokens else self.per_device_train_batch_size
        if self.global_batch_size % (rows * world_size):
            split = "the number of processes" if by_tokens else "per_device_train_batch_size × processes"
            raise ValueError(
                f"global_batch_size = {self.global_batch_size} is not a multiple of {split} = "
                f"{'' if by_tokens else f'{rows} × '}{world_size}. Change one of them, or set "
                "gradient_accumulation_steps."
            )
        if self.global_batch_size % self.num_generations:
            raise ValueError(
                f"global_batch_size = {self.global_batch_size} counts responses, and is not a multiple of "
                f"num_generations = {self.num_generations}. Change one of them."
            )
        rows = self.global_batch_size // world_size if by_tokens else rows
        self.per_device_train_batch_size = rows
        self.gradient_accumulation_steps = self.global_batch_size // (rows * world_size)

    def __getstate__(self) -> dict[str, Any]:
        """Checkpoints pickle their arguments; a rule given as a function is stored by name."""
        functions = {
            name: rule_name(value) for name in ("allocation", "score") if callable(value := getattr(self, name))
        }
        return self.__dict__ | functions

    def __deepcopy__(self, memo: dict[int, Any]) -> "TrustMOPDConfig":
        copied = object.__new__(type(self))
        copied.__dict__.update({key: copy.deepcopy(value, memo) for key, value in self.__dict__.items()})
        return copied

    def to_dict(self) -> dict[str, Any]:
        parts = {part: getattr(self.rules, part).model_dump() for part in (*PARTS, "rollouts")}
        return {**super().to_dict(), **parts, "score": rule_name(self.score)}


def unknown_field(names: Iterable[str], config: type, remedy: str = "docs/configuration.md lists them.") -> str | None:
    """An error message for the first name that is not a field of `config`; None if all are."""
    known = [each.name for each in fields(config) if each.init]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1) or [each for each in known if name.startswith(each)]
            return f"{name} is not a field of {config.__name__}. {f'Did you mean `{close[0]}`?' if close else remedy}"
    return None


def has_bfloat16() -> bool:
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return torch.xpu.is_available()
