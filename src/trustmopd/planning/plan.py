"""Every way to run a recipe on a machine: what it needs, whether that fits, how long it takes, what to set for it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from trustmopd.planning.elsewhere import gpus_of
from trustmopd.planning.memory import GIB, Gib, peak
from trustmopd.planning.seconds import gpu_hours, learning_bytes, rollout_bytes, seconds_per_step
from trustmopd.planning.workload import (
    ADAPTERS,
    DTYPES,
    ENGINES,
    FLOAT32,
    FSDP2,
    LORA,
    OFFLOAD,
    PLACEMENTS,
    RAY,
    SHARDED,
    ZERO3,
    Setup,
    Workload,
)
from trustmopd.recipe import Recipe

SCHEMA_VERSION = 1
#: Share of a GPU's memory that a plan may fill: the driver, the libraries and gaps between tensors take the rest.
USABLE = 0.92
_DEEPSPEED = {
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}


@dataclass(frozen=True)
class Row:
    """`set` are the recipe's fields, by dotted name, that make this row of it. `extra_gpus` are for policies on Ray,
    beside those that train. `at_hand`: it needs no other checkpoints than the recipe's, and no more GPUs."""

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
        }


def plan(recipe: Recipe, work: Workload, *, gpus: int, memory: float, nodes: int = 1) -> list[Row]:
    """All rows, in the order of the placements. `gpus` of each node, `memory` of each GPU in GiB."""
    for name, value in {"gpus": gpus, "memory": memory, "nodes": nodes}.items():
        if value <= 0:
            raise ValueError(f"--{name} {value:g}: there is nothing to plan for. Give a number above 0.")
    if recipe.training.get("gradient_accumulation_steps") is not None:  # then the batch grows with the GPUs
        work = replace(work, batch=work.batch * gpus * nodes)
    choices = product(PLACEMENTS, ENGINES, DTYPES)
    return [_row(recipe, work, Setup(*choice, gpus=gpus, nodes=nodes, memory=memory)) for choice in choices]


def fastest(rows: list[Row]) -> Row | None:
    """Of those that fit and need no other checkpoints; of equally fast ones, the one that trains in float32."""
    able = [row for row in rows if row.fits and row.at_hand]
    return min(
        able, key=lambda row: (row.seconds_per_step, row.setup.student_dtype != FLOAT32, row.gib.total), default=None
    )


def to_json(rows: list[Row]) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "rows": [row.to_dict() for row in rows]}


def fits(gib: Gib, setup: Setup) -> bool:
    return gib.total <= USABLE * setup.memory


def _row(recipe: Recipe, work: Workload, setup: Setup) -> Row:
    """With the largest micro-batch that fits, up to the recipe's."""
    tried = [replace(work, micro_batch=size) for size in work.micro_batches(setup.world)]
    chosen = next((each for each in tried if fits(peak(each, setup), setup)), tried[-1])
    gib, seconds = peak(chosen, setup), seconds_per_step(chosen, setup)
    hosts = chosen.hosts(setup) if setup.placement == OFFLOAD else ()
    away = chosen.hosts(setup) if setup.placement == RAY else ()
    each = [gpus_of(host, chosen, setup, USABLE * setup.memory * GIB) for host in away]
    return Row(
        setup,
        gib,
        fits(gib, setup),
        seconds,
        gpu_hours(chosen, setup, seconds, sum(each)),
        network_gb=(learning_bytes(chosen, setup) + rollout_bytes(chosen, setup)) / 1e9,
        host_gib=sum(host.parameters - host.head for host in hosts) * chosen.frozen_bytes * setup.gpus / GIB,
        set=_fields(recipe, chosen, setup, fewer_rows=chosen is not tried[0]) | _spread(recipe, each),
        at_hand=(setup.placement != ADAPTERS or not chosen.teachers)
        and (setup.placement != SHARDED or setup.gpus * setup.nodes > 1)
        and not each,
        extra_gpus=sum(each),
    )


def _spread(recipe: Recipe, gpus: Sequence[int]) -> dict[str, Any]:
    """Teachers on Ray that need more than one GPU. The first of the frozen models are theirs."""
    full = {name: teacher for name, teacher in recipe.teachers.items() if teacher.model is not None}
    return {
        f"teachers.{name}": {**teacher.model_dump(exclude_none=True), "gpus": needed}
        for (name, teacher), needed in zip(full.items(), gpus, strict=False)
        if needed > 1
    }


def _fields(recipe: Recipe, work: Workload, setup: Setup, *, fewer_rows: bool) -> dict[str, Any]:
    given = recipe.training
    placement = "resident" if setup.placement == ADAPTERS else setup.placement
    fields: dict[str, Any] = {
        "training.teacher_placement": placement,
        "training.model_init_kwargs": {**(given.get("model_init_kwargs") or {}), "dtype": setup.student_dtype},
    }
    micro_batch = work.micro_batch_on(setup.world)
    accumulation = work.batch // setup.world // micro_batch
    by_rows = given.get("max_tokens_per_micro_batch") is None
    if by_rows and micro_batch != given.get("per_device_train_batch_size", 4):
        fields["training.per_device_train_batch_size"] = micro_batch
    if not by_rows and fewer_rows:
        fields["training.max_tokens_per_micro_batch"] = micro_batch * (work.prompt + work.response)
    if setup.placement == ADAPTERS:
        fields["peft"] = recipe.peft or LORA
        fields |= {
            f"teachers.{name}": {"adapter": "PATH"} for name, t in recipe.teachers.items() if t.model is not None
        }
    if setup.engine == FSDP2:
        fields["training.fsdp"] = True
        if accumulation > 1:  # otherwise every GPU holds all gradients until the last micro-batch
            synced = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
            fields["training.accelerator_config"] = {**(given.get("accelerator_config") or {}), **synced}
    if setup.engine == ZERO3:
        fields["training.deepspeed"] = _DEEPSPEED
    return fields
