"""Every way to run a recipe on a machine: what it needs, whether that fits, how long it takes, what to set for it."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import yaml

from trustmopd.planning.launching import FIELDS, check_joined, launch_command
from trustmopd.planning.memory import GIB, Gib, answer_bytes, least_of_vllm, peak, pinned_bytes, reading_bytes
from trustmopd.planning.seconds import gpu_hours, learning_bytes, rollout_bytes, seconds_per_step
from trustmopd.planning.workload import (
    ADAPTERS,
    DTYPES,
    ENGINES,
    FLOAT32,
    FSDP2,
    LORA,
    PLACEMENTS,
    RAY,
    RESIDENT,
    SHARDED,
    ZERO3,
    FrozenModel,
    Setup,
    Workload,
)
from trustmopd.policies.hosts.ray.vllm_pool import SHARE
from trustmopd.recipe import Recipe
from trustmopd.recipe.rollout_engines import TRANSFORMERS

SCHEMA_VERSION = 1
#: Share of a GPU's memory that a plan may fill: the driver, the libraries and gaps between tensors take the rest.
USABLE = 0.92
#: Tokens that vLLM reads in one pass, and caches for it.
CACHED = 8192
#: Rows whose seconds differ by less than this share count as equally fast: rates are known to 5%.
TIE = 0.05
_DEEPSPEED = {
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}


@dataclass(frozen=True)
class Option:
    """One way to run a recipe. `set` are the recipe's fields, by dotted name, that make it. `extra_gpus` are for
    policies on Ray, beside those that train. `at_hand`: it needs no other checkpoints than the recipe's and no more
    GPUs, and `train` does not refuse it."""

    setup: Setup
    gib: Gib
    fits: bool
    seconds_per_step: float
    gpu_hours: float | None
    network_gb: float
    host_gib: float
    set: Mapping[str, Any]
    at_hand: bool = True
    extra_gpus: int = 0

    def to_dict(self) -> dict[str, Any]:
        setup = self.setup
        return {
            "placement": setup.placement,
            "engine": setup.engine,
            "student_dtype": setup.student_dtype,
            "fits": self.fits,
            "gib": {name: round(size, 3) for name, size in {**asdict(self.gib), "total": self.gib.total}.items()},
            "seconds_per_step": round(self.seconds_per_step, 3),
            "gpu_hours": None if self.gpu_hours is None else round(self.gpu_hours, 2),
            "set": dict(self.set),
            **({"extra_gpus": self.extra_gpus} if self.extra_gpus else {}),
            **({"server_gpus": setup.server_gpus} if setup.server_gpus else {}),
        }

    @property
    def overrides(self) -> list[str]:
        """`set` as words of the command line, without the engine: the launcher's file asks for it."""
        return [f"{name}={_flow(value)}" for name, value in self.set.items() if name not in FIELDS.values()]

    def command(self, words: Sequence[str]) -> str:
        """What starts this option; `words` are the recipe and its overrides."""
        return shlex.join(launch_command(self.setup, [*words, *self.overrides]))


def plan(
    recipe: Recipe, work: Workload, *, gpus: int, memory: float, nodes: int = 1, server: int | None = None
) -> list[Option]:
    """All options, in the order of the placements. `gpus` that train, of each node; `memory` of each GPU in GiB;
    `server` GPUs of a vLLM server, or as few as hold the student."""
    for name, value in {"gpus": gpus, "memory": memory, "nodes": nodes}.items():
        if not 0 < value < math.inf:
            raise ValueError(f"--{name} {value:g}: there is nothing to plan for. Give a number above 0.")
    if recipe.training.get("gradient_accumulation_steps") is not None:  # then the batch grows with the GPUs
        work = replace(work, batch=work.batch * gpus * nodes)
    if work.vllm_share:
        check_joined(work.vllm_split, gpus * nodes, "Plan for a multiple of it (--gpus, --nodes)")
    served = server_gpus(work, USABLE * memory * GIB, server)
    choices = product(PLACEMENTS, ENGINES, DTYPES)
    setups = (Setup(*choice, gpus=gpus, nodes=nodes, memory=memory, server_gpus=served) for choice in choices)
    return [_option(recipe, work, setup) for setup in setups]


def fastest(options: list[Option]) -> Option | None:
    """Of those that fit and need no other checkpoints. Of equally fast ones, one that trains in float32; of those the
    simplest: resident teachers, then DDP, then no teachers in host memory."""
    able = [option for option in options if option.fits and option.at_hand]
    least = min((option.seconds_per_step for option in able), default=0.0)
    tied = [option for option in able if option.seconds_per_step <= least * (1 + TIE)]
    return min(tied, key=_simplest_first, default=None)


def _simplest_first(option: Option) -> tuple[Any, ...]:
    setup = option.setup
    return setup.student_dtype != FLOAT32, setup.placement != RESIDENT, ENGINES.index(setup.engine), option.host_gib


def to_json(options: list[Option], words: Sequence[str]) -> dict[str, Any]:
    """`words` are the recipe and its overrides."""
    rows = [
        {**option.to_dict(), "usable": option.fits and option.at_hand, "launch": option.command(words)}
        for option in options
    ]
    return {"schema_version": SCHEMA_VERSION, "rows": rows}


def fits(gib: Gib, setup: Setup) -> bool:
    return gib.total <= USABLE * setup.memory


def gpus_of(model: FrozenModel, work: Workload, setup: Setup, usable: float) -> int:
    """GPUs of one replica, with `usable` bytes each: its weights may be spread, what it computes with may not. vLLM
    spreads its cache too, over a power of two, and leaves hidden states in host memory."""
    shape = model.shape
    reading = reading_bytes(work, setup, [shape])
    if model.on_vllm:
        cache = (CACHED + work.prompt + work.response) * shape.key_value * shape.layers * model.dtype.itemsize
        least = math.ceil((model.bytes + cache) / max(SHARE * usable - reading, 0.05 * usable))
        return int(1 << (least - 1).bit_length())
    kept = min(work.answers_on_device, work.batch * work.response * shape.hidden * work.compute_bytes)
    room = max(usable - reading - kept, 0.05 * usable)
    return max(1, math.ceil(model.bytes / room))


def server_gpus(work: Workload, usable: float, asked: int | None) -> int:
    """GPUs of the recipe's vLLM server, with `usable` bytes each; 0 without one. The recipe cannot say how many: they
    are those `asked` for, or the fewest that hold the student."""
    if not work.vllm_serves:
        if asked:
            raise ValueError(
                f"--server-gpus {asked}: this recipe has no vLLM server. Leave it out, or set rollouts.engine=vllm "
                "and rollouts.mode=server."
            )
        return 0
    least = max(1, math.ceil(least_of_vllm(work) / usable))
    if asked is not None and asked < least:
        raise ValueError(
            f"--server-gpus {asked}: vLLM needs at least {least_of_vllm(work) / GIB:.1f} GiB for the student's weights "
            f"and one response, and {usable / GIB:.1f} of each GPU can be filled. Give at least {least}."
        )
    return asked or least


def _option(recipe: Recipe, work: Workload, setup: Setup) -> Option:
    """With the largest micro-batch that fits, up to the recipe's."""
    tried = [replace(work, micro_batch=size) for size in work.micro_batches(setup.world)]
    chosen = next((each for each in tried if fits(peak(each, setup), setup)), tried[-1])
    gib, seconds = peak(chosen, setup), seconds_per_step(chosen, setup)
    models = chosen.models(setup)
    spilt = max(0.0, answer_bytes(chosen, setup) - chosen.answers_on_device)
    away = [model for model in models if model.on == RAY]
    extra = [gpus_of(model, chosen, setup, USABLE * setup.memory * GIB) for model in away]
    return Option(
        setup,
        gib,
        fits(gib, setup),
        seconds,
        gpu_hours(chosen, setup, seconds, sum(extra)),
        network_gb=(learning_bytes(chosen, setup) + rollout_bytes(chosen, setup)) / 1e9,
        host_gib=(pinned_bytes(models) + spilt) * setup.gpus / GIB,
        set=_fields(recipe, chosen, setup, fewer_rows=chosen is not tried[0]) | _spread(recipe, chosen, extra),
        at_hand=_at_hand(chosen, setup),
        extra_gpus=sum(extra),
    )


def _at_hand(work: Workload, setup: Setup) -> bool:
    other_checkpoints = setup.placement == ADAPTERS and bool(work.full_teachers)
    nobody_to_share_with = setup.world == 1 and (setup.placement == SHARDED or setup.engine == FSDP2)
    refused = nobody_to_share_with or (setup.engine == ZERO3 and work.uses_vllm)
    return not (other_checkpoints or refused or setup.placement == RAY)


def _spread(recipe: Recipe, work: Workload, gpus: Sequence[int]) -> dict[str, Any]:
    """Teachers on Ray that need more than one GPU."""
    return {
        f"teachers.{name}": {**recipe.teachers[name].model_dump(exclude_none=True), "gpus": needed}
        for model, needed in zip(work.frozen, gpus, strict=False)
        for name in model.teachers
        if needed > 1
    }


def _fields(recipe: Recipe, work: Workload, setup: Setup, *, fewer_rows: bool) -> dict[str, Any]:
    given = recipe.training
    placement = "resident" if setup.placement == ADAPTERS else setup.placement
    fields: dict[str, Any] = {
        "training.teacher_placement": placement,
        "training.model_init_kwargs": {**(given.get("model_init_kwargs") or {}), "dtype": setup.student_dtype},
    }
    if placement != RAY and given.get("teacher_engine"):  # which is for policies on Ray
        fields |= {"training.teacher_engine": TRANSFORMERS, "training.teacher_quantization": None}
    micro_batch = work.micro_batch_on(setup.world)
    accumulation = work.batch // setup.world // micro_batch
    by_rows = given.get("max_tokens_per_micro_batch") is None
    if by_rows and micro_batch != given.get("per_device_train_batch_size", 4):
        fields["training.per_device_train_batch_size"] = micro_batch
        if given.get("gradient_accumulation_steps") is not None:
            fields["training.gradient_accumulation_steps"] = accumulation
    if not by_rows and fewer_rows:
        fields["training.max_tokens_per_micro_batch"] = micro_batch * (work.prompt + work.response)
    if setup.placement == ADAPTERS:
        fields["peft"] = recipe.peft or LORA
        fields |= {f"teachers.{name}": {"adapter": "PATH"} for name in work.full_teachers}
    if setup.engine == FSDP2:
        fields[FIELDS[FSDP2]] = True
        if accumulation > 1:  # otherwise every GPU holds all gradients until the last micro-batch
            synced = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
            fields["training.accelerator_config"] = {**(given.get("accelerator_config") or {}), **synced}
    if setup.engine == ZERO3:
        fields[FIELDS[ZERO3]] = _DEEPSPEED
    return fields


def _flow(value: Any) -> str:
    """On one line, as an override is written."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...")
