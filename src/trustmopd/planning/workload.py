"""What a recipe asks of a machine, in numbers: models, tokens, batch, and who samples."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoConfig

from trustmopd.planning.shapes import Shape, lora_parameters, shape_of
from trustmopd.policies.references import Start, as_pool, frozen_models, is_reference, role_of, starts_of
from trustmopd.policies.teacher import Teacher
from trustmopd.recipe import Recipe

RESIDENT, OFFLOAD, SHARDED, ADAPTERS, RAY = PLACEMENTS = ("resident", "offload", "sharded", "adapters", "ray")
DDP, FSDP2, ZERO3 = ENGINES = ("DDP", "FSDP2", "ZeRO-3")
ZERO2 = "ZeRO-2"  # no row of a plan: it needs at least as much as ZeRO-3
FLOAT32, BFLOAT16 = DTYPES = ("float32", "bfloat16")
#: Prompts of a run that sets no limit are taken to be this long.
LONGEST_PROMPT = 4096
#: An adapter where a recipe has none: what the adapters placement would train, and teachers on another base are.
LORA = {"r": 16, "target_modules": "all-linear"}


@dataclass(frozen=True)
class Setup:
    """One way to run: a row of a plan. `gpus` of a node, `memory` of one of them in GiB. `server_gpus` are a vLLM
    server's, beside them."""

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
class Base:
    """A frozen model that is no teacher. It is `asked` about every response if teachers are measured from it.
    `adapters` are teachers on its weights, taken to have `lora` parameters each."""

    shape: Shape
    is_student: bool = False
    asked: bool = False
    adapters: int = 0
    lora: int = 0

    @property
    def policies(self) -> int:
        return self.asked + self.adapters


@dataclass(frozen=True)
class Workload:
    """`teachers` have weights of their own; the others are adapters on one of the `bases`, which are the references
    too. `lora` counts the parameters of the student's adapter, or of the one it would have; `is_lora` says which. Sizes
    are bytes an element: `frozen_bytes` of the frozen weights, `compute_bytes` of hidden states."""

    student: Shape
    teachers: Mapping[str, Shape]
    bases: tuple[Base, ...]
    is_lora: bool
    lora: int
    prompt: int
    response: int
    batch: int
    micro_batch: int
    candidates: int
    answers_on_device: float = math.inf
    frozen_bytes: int = 2
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
        return len(self.teachers) + sum(base.policies for base in self.bases)

    def trains_adapter(self, placement: str) -> bool:
        return self.is_lora or placement == ADAPTERS

    def hosts(self, setup: Setup) -> tuple[Shape, ...]:
        """Frozen models with weights of their own. A LoRA student lends its base, unless the engine takes it apart or
        the initial student is asked elsewhere."""
        lent = self.trains_adapter(setup.placement) and setup.engine == DDP and setup.placement != RAY
        adapters = setup.placement == ADAPTERS  # on the bases, or else on the student's
        bases = self.bases or ((Base(self.student, is_student=True),) if adapters else ())
        kept = tuple(base.shape for base in bases if not (base.is_student and lent))
        return kept if adapters else (*self.teachers.values(), *kept)

    def adapters(self, setup: Setup) -> list[tuple[Shape, int]]:
        """Of teachers that are adapters: the shape of their base, and their own parameters."""
        found = [(base.shape, base.lora) for base in self.bases for _ in range(base.adapters)]
        return found + ([(self.student, self.lora)] * len(self.teachers) if setup.placement == ADAPTERS else [])

    def whole(self, setup: Setup) -> list[Shape]:
        """Of policies that are no adapters."""
        teachers = () if setup.placement == ADAPTERS else self.teachers.values()
        return [*teachers, *(base.shape for base in self.bases if base.asked)]

    def readers(self, setup: Setup) -> list[Shape]:
        """The models under all frozen policies, one for each policy."""
        return [*self.whole(setup), *(shape for shape, _ in self.adapters(setup))]

    def micro_batches(self, world: int) -> list[int]:
        """Sizes up to the recipe's that split the batch evenly over `world` GPUs, the largest first."""
        if self.batch % world:
            raise ValueError(
                f"global_batch_size = {self.batch} cannot be split evenly over {world} GPUs. Plan for a number of GPUs "
                "that divides it, or set training.global_batch_size to a multiple."
            )
        each = self.batch // world
        return [size for size in range(min(self.micro_batch, each), 0, -1) if each % size == 0]

    def micro_batch_on(self, world: int) -> int:
        return self.micro_batches(world)[0]


def workload_of(
    recipe: Recipe, args: Any, lora: LoraConfig | None = None, *, half: bool = True, prompt: int | None = None
) -> Workload:
    """Of a recipe, its TrustMOPDConfig, and the adapter of its student if it has one. `half`: the machine computes in
    16 bits. `prompt` is the longest there is, where the prompt set is known."""
    trusted = {"trust_remote_code": bool(args.trust_remote_code)}
    student = shape_of("the student", recipe.student, (args.model_init_kwargs or {}).get("revision"), **trusted)
    single = getattr(recipe.allocation, "teacher", None)
    named = {name: Teacher.of(source) for name, source in recipe.teachers.items() if single in (None, name)}
    used, common = as_pool(named, recipe.reference, recipe.student)
    models = frozen_models(used, common, with_reference=args.needs_reference)
    # A revision given with an adapter may be the adapter's.
    shapes = {
        name: shape_of(role_of(name), str(each.model), None if each.adapter else each.revision, **trusted)
        for name, each in models.items()
        if each is not None
    }
    usual = LoraConfig(**LORA, task_type="CAUSAL_LM")
    on_student = lora_parameters(lora or usual, recipe.student, **trusted)

    def adapter_on(start: Start) -> int:
        return on_student if start.given is None else lora_parameters(usual, str(start.given.model), **trusted)

    bases = tuple(
        Base(
            shapes.get(start.name, student),
            is_student=start.given is None,
            asked=bool(start.measures) and args.needs_reference,
            adapters=len(start.carries),
            lora=adapter_on(start) if start.carries else 0,
        )
        for start in starts_of(used, common)
        if start.used(args.needs_reference)
    )
    serves = args.use_vllm and args.vllm_mode == "server"
    longest = prompt or args.max_prompt_length or LONGEST_PROMPT
    budget = args.max_tokens_per_micro_batch
    rows = max(1, budget // (longest + args.max_completion_length)) if budget else args.per_device_train_batch_size
    return Workload(
        student=student,
        teachers={name: shape for name, shape in shapes.items() if not is_reference(name)},
        bases=bases,
        is_lora=lora is not None,
        lora=on_student,
        prompt=longest,
        response=args.max_completion_length,
        batch=args.global_batch_size,
        micro_batch=rows,
        candidates=args.num_candidates,
        answers_on_device=args.answers_on_device_gib * 2**30,
        frozen_bytes=4 if args.teacher_dtype == FLOAT32 or not (half or args.teacher_dtype) else 2,
        compute_bytes=2 if half else 4,
        checkpointing=bool(args.gradient_checkpointing),
        static_cache=args.cache_implementation is not None,
        vllm_share=args.vllm_gpu_memory_utilization if args.use_vllm and not serves else 0.0,
        vllm_sleeps=bool(args.vllm_enable_sleep_mode),
        uses_vllm=bool(args.use_vllm),
        vllm_serves=serves,
        vllm_split=args.vllm_tensor_parallel_size,
        steps=args.max_steps if args.max_steps > 0 else None,
        calibration_batches=args.calibration_batches if args.calibrates and args.calibration_path is None else 0,
    )


def student_dtype_of(args: Any, student: Any) -> torch.dtype:
    """Of a loaded student, or of one that TRL will load from a path: float32 unless a dtype is given. "auto" is the one
    that it is stored in."""
    if not isinstance(student, (str, Path)):
        return next(parameter.dtype for parameter in student.parameters() if parameter.is_floating_point())
    given: Mapping[str, Any] = args.model_init_kwargs or {}
    dtype = given.get("dtype", FLOAT32)
    if dtype in ("auto", None):
        config = AutoConfig.from_pretrained(
            student, revision=given.get("revision"), trust_remote_code=bool(args.trust_remote_code)
        )
        dtype = config.dtype or FLOAT32
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype
