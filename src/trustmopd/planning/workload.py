"""What a run asks of a machine, in numbers: models, tokens, batch, and who samples."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig

from trustmopd.planning.shapes import Shape, dtype_of, lora_parameters, shape_of
from trustmopd.policies.graph import PolicyGraph, Weights, is_reference
from trustmopd.recipe.rollout_engines import TRANSFORMERS, VLLM
from trustmopd.recipe.teacher_source import OFFLOAD as OFFLOAD
from trustmopd.recipe.teacher_source import RAY as RAY
from trustmopd.recipe.teacher_source import RESIDENT as RESIDENT
from trustmopd.recipe.teacher_source import SHARDED as SHARDED

#: The places, and what a recipe would be whose teachers were adapters of one base.
ADAPTERS = "adapters"
PLACEMENTS = (RESIDENT, OFFLOAD, SHARDED, ADAPTERS, RAY)
#: Each frozen model where the recipe puts it: a run as it is, no row of a plan.
OWN = "own"
DDP, FSDP2, ZERO3 = ENGINES = ("DDP", "FSDP2", "ZeRO-3")
ZERO2 = "ZeRO-2"  # no row of a plan: it needs at least as much as ZeRO-3
FLOAT32, BFLOAT16 = DTYPES = ("float32", "bfloat16")
#: Prompts of a run that sets no limit are taken to be this long.
LONGEST_PROMPT = 4096
#: An adapter where a recipe has none: what the adapters placement would train, and teachers on another base are.
LORA = {"r": 16, "target_modules": "all-linear"}


@dataclass(frozen=True)
class Setup:
    """One way to run: a row of a plan. `placement` is where all frozen models live. `gpus` of a node, `memory` of one
    of them in GiB. `server_gpus` are a vLLM server's, beside them."""

    placement: str
    engine: str
    student_dtype: str
    gpus: int = 1
    nodes: int = 1
    memory: float = math.inf
    server_gpus: int = 0
    #: FSDP2 shards gradients after every micro-batch; otherwise each GPU keeps all of them until the last.
    sync_each_batch: bool = True

    @property
    def world(self) -> int:
        return self.gpus * self.nodes


@dataclass(frozen=True)
class FrozenModel:
    """One set of frozen weights; on Ray `engine` reads them. `bare` counts the policies that are these weights alone,
    each under its own view; `teachers` are their names unless the first is a reference. `adapters` are the numbers of
    parameters of the adapters on them, each a policy. The student's own base takes no memory of its own if it is
    `lent`."""

    shape: Shape
    on: str = RESIDENT
    dtype: torch.dtype = torch.bfloat16
    bare: int = 1
    adapters: tuple[int, ...] = ()
    is_student: bool = False
    role: str = ""
    teachers: tuple[str, ...] = ()
    lent: bool = False
    engine: str = TRANSFORMERS
    quantization: str | None = None

    @property
    def on_vllm(self) -> bool:
        return self.on == RAY and self.engine == VLLM

    @property
    def policies(self) -> int:
        return self.bare + len(self.adapters)

    @property
    def name(self) -> str:
        return next(iter(self.teachers), self.role)

    @property
    def bytes(self) -> int:
        own_embedding = self.head if self.on_vllm and not self.shape.embedding else 0  # a tied head is ours alone
        return self.head + self.body + own_embedding

    @property
    def head(self) -> int:
        """Bytes of the output head, which stays on the GPU."""
        return self.shape.head * self.dtype.itemsize

    @property
    def body(self) -> int:
        """Bytes of everything else."""
        layers = self.shape.parameters - self.shape.root
        size = 1 if self.on_vllm and self.quantization else self.dtype.itemsize
        return layers * size + self.shape.embedding * self.dtype.itemsize


@dataclass(frozen=True)
class Workload:
    """`lora` counts the parameters of the student's adapter, or of the one it would have; `is_lora` says which.
    `compute_bytes` are those of an element of hidden states."""

    student: Shape
    frozen: tuple[FrozenModel, ...]
    is_lora: bool
    lora: int
    prompt: int
    response: int
    batch: int
    micro_batch: int
    candidates: int
    answers_on_device: float = math.inf
    compute_bytes: int = 2
    checkpointing: bool = True
    static_cache: bool = False
    vllm_share: float = 0.0
    vllm_sleeps: bool = False
    uses_vllm: bool = False
    vllm_serves: bool = False
    vllm_split: int = 1
    steps: int | None = None
    calibration_batches: int = 0

    @property
    def policies(self) -> int:
        """Frozen policies that answer about every response."""
        return sum(model.policies for model in self.frozen)

    @property
    def full_teachers(self) -> list[str]:
        """Those that have weights of their own."""
        return [name for model in self.frozen for name in model.teachers]

    def trains_adapter(self, placement: str) -> bool:
        return self.is_lora or placement == ADAPTERS

    def models(self, setup: Setup) -> list[FrozenModel]:
        """The frozen models in their places. A LoRA student lends its base, unless the engine takes it apart or the
        initial student is asked elsewhere."""
        placed = self._as_adapters() if setup.placement == ADAPTERS else list(self.frozen)
        if setup.placement not in (OWN, ADAPTERS):
            placed = [replace(model, on=setup.placement) for model in placed]
        lends = self.trains_adapter(setup.placement) and setup.engine == DDP
        return [replace(model, lent=lends and model.is_student and model.on != RAY) for model in placed]

    def _as_adapters(self) -> list[FrozenModel]:
        """With every teacher as an adapter on a reference, or else on the student's base."""
        references = [replace(model, on=RESIDENT) for model in self.frozen if not model.teachers]
        base, *others = references or [FrozenModel(self.student, bare=0, is_student=True)]
        return [replace(base, adapters=(*base.adapters, *[self.lora for _ in self.full_teachers])), *others]

    def micro_batches(self, world: int) -> list[int]:
        """Sizes up to the recipe's that split the batch evenly over `world` GPUs, the largest first."""
        if self.batch % world:
            raise ValueError(
                f"global_batch_size = {self.batch} cannot be split evenly over {world} GPUs. Plan for a number of GPUs "
                "that divides it, or set training.global_batch_size to a multiple."
            )
        share = self.batch // world
        return [size for size in range(min(self.micro_batch, share), 0, -1) if share % size == 0]

    def micro_batch_on(self, world: int) -> int:
        return self.micro_batches(world)[0]


def workload_of(
    graph: PolicyGraph,
    student: Any,
    args: Any,
    lora: Any = None,
    *,
    half: bool = True,
    prompt: int | None = None,
) -> Workload:
    """Of the frozen policies, the student (its path, or the model), a TrustMOPDConfig, and the adapter that the student
    is to have, if any. `half`: the machine computes in 16 bits. `prompt` is the longest there is, where the prompt set
    is known."""
    trusted = bool(args.trust_remote_code)
    shape = shape_of("the student", student, (args.model_init_kwargs or {}).get("revision"), trusted)
    is_part, trained = _trained_part(student)
    if not is_part:
        trained = lora_parameters(lora or _usual_lora(), student, trusted)
    uses_vllm = args.rules.rollouts.engine == VLLM
    serves = uses_vllm and args.vllm_mode == "server"
    longest = prompt or args.max_prompt_length or LONGEST_PROMPT
    budget = args.max_tokens_per_micro_batch
    rows = max(1, budget // (longest + args.max_completion_length)) if budget else args.per_device_train_batch_size
    default = getattr(torch, args.teacher_dtype or (BFLOAT16 if half else FLOAT32))
    return Workload(
        student=shape,
        frozen=tuple(frozen_model(weights, student, default, trained, trusted) for weights in graph.weights),
        is_lora=is_part or lora is not None,
        lora=trained,
        prompt=longest,
        response=args.max_completion_length,
        batch=args.global_batch_size,
        micro_batch=rows,
        candidates=args.num_candidates,
        answers_on_device=args.answers_on_device_gib * 2**30,
        compute_bytes=2 if half else 4,
        checkpointing=bool(args.gradient_checkpointing),
        static_cache=args.cache_implementation is not None,
        vllm_share=args.vllm_gpu_memory_utilization if uses_vllm and not serves else 0.0,
        vllm_sleeps=bool(args.vllm_enable_sleep_mode),
        uses_vllm=uses_vllm,
        vllm_serves=serves,
        vllm_split=args.vllm_tensor_parallel_size,
        steps=args.max_steps if args.max_steps > 0 else None,
        calibration_batches=args.calibration_batches if args.calibrates and args.calibration_path is None else 0,
    )


def frozen_model(
    weights: Weights, student: Any, default: torch.dtype, adapter_on_student: int, trust_remote_code: bool
) -> FrozenModel:
    """`default` is for weights without a dtype of their own."""
    given = weights.checkpoint
    bare = [name for name in weights.sources if name not in weights.adapters]
    if given is None:
        shape, dtype, adapter = shape_of(weights.role, student, None, trust_remote_code), default, adapter_on_student
    else:
        assert given.model is not None
        revision = None if given.adapter else given.revision  # with an adapter, it may be the adapter's
        shape = shape_of(weights.role, given.model, revision, trust_remote_code)
        dtype = default if given.dtype is None else dtype_of(given.dtype, given.model, revision, trust_remote_code)
        adapter = lora_parameters(_usual_lora(), given.model, trust_remote_code) if weights.adapters else 0
    return FrozenModel(
        shape,
        weights.on,
        dtype,
        bare=len(bare),
        adapters=(adapter,) * len(weights.adapters),
        is_student=given is None,
        role=weights.role,
        teachers=() if any(map(is_reference, bare)) else tuple(bare),
        engine=weights.engine,
        quantization=weights.quantization,
    )


def _usual_lora() -> LoraConfig:
    return LoraConfig(**LORA, task_type="CAUSAL_LM")


def _trained_part(student: Any) -> tuple[bool, int]:
    """Whether only a part of a loaded student is trained, as with an adapter, and the number of its parameters."""
    parameters = [] if isinstance(student, (str, Path)) else list(student.parameters())
    trained = [parameter.numel() for parameter in parameters if parameter.requires_grad]
    return len(trained) < len(parameters), sum(trained)


def student_dtype_of(args: Any, student: Any) -> torch.dtype:
    """Of a loaded student, or of one that TRL will load from a path: float32 unless a dtype is given."""
    if not isinstance(student, (str, Path)):
        return next(parameter.dtype for parameter in student.parameters() if parameter.is_floating_point())
    given = args.model_init_kwargs or {}
    return dtype_of(given.get("dtype", FLOAT32), student, given.get("revision"), bool(args.trust_remote_code))
