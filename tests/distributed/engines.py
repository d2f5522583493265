"""Every engine that shares a run among processes: how it is asked for, and what is run under it.

As a script, in each of several processes: one run with fixed rollouts, resumed from its middle, and a step with
rollouts of its own, all through the command line."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import on_cpu
import replay
import tiny
import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trustmopd.cli import app, leaving
from trustmopd.training import prepare

CONFIGS = Path(__file__).parents[2] / "recipes" / "accelerate"
#: Two steps of eight responses, gone through twice.
LENGTHS = (*replay.LENGTHS, 4, 7, 2, replay.LONGEST, 10, 1, 11, 3)
STEPS, MIDDLE = 4, 2
TRAINING: dict[str, Any] = {
    "max_steps": STEPS,
    "save_steps": MIDDLE,
    "global_batch_size": 8,
    "per_device_train_batch_size": 2,
    "max_completion_length": replay.LONGEST,
    "num_candidates": replay.CANDIDATES,
    "calibration_batches": 1,
    "learning_rate": 1e-2,
    "adam_epsilon": 1e-2,  # a step as smooth as its gradient: with 1e-8, rounding decides the sign of small ones
    "max_grad_norm": 1e3,  # the norm is computed, and logged
    "warmup_steps": 0,
    "record_allocation_every": 2,
}


@dataclass(frozen=True)
class Engine:
    """`config` is a file of recipes/accelerate, `options` what the launcher is told beside it, `recipe` one that
    `write_recipes` writes, `overrides` what changes in it, `combined` the names of more runs in `COMBINED`."""

    name: str
    config: str
    recipe: str
    options: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    changes_processes: bool = True
    combined: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, str]:
        """What `accelerate launch` would put into the environment."""
        given = ["--config_file", str(CONFIGS / self.config), "--mixed_precision", "no", *self.options, "script"]
        args, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(given))
        if not args.use_deepspeed:
            found = prepare_multi_gpu_env(args)
        else:
            args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
            found = prepare_deepspeed_cmd_env(args)[1]
        return {name: value for name, value in found.items() if name.startswith(("ACCELERATE_", "FSDP_"))}


#: A recipe, and what changes in it. One process without these settings takes the same steps.
SHARDED = ("training.teacher_placement=sharded", "training.max_tokens_per_micro_batch=90")
COMBINED = {
    "token budget, own reference": ("own", SHARDED[1:]),
    "sharded teachers, token budget, own reference": ("own", SHARDED),
    "offloaded teachers, own reference": ("own", ("training.teacher_placement=offload",)),
    "sharded base, token budget": ("lora", SHARDED),
}
*OF_MODELS, OF_ADAPTERS = COMBINED
FULL = ("--fsdp_state_dict_type", "FULL_STATE_DICT")
ENGINES = {
    "ddp": Engine("DDP", "ddp.yaml", "tied", combined=(*OF_MODELS,)),
    "ddp-lora": Engine("DDP", "ddp.yaml", "lora", combined=(OF_ADAPTERS,)),
    "fsdp2": Engine("FSDP2", "fsdp2.yaml", "untied", combined=(*OF_MODELS,)),
    "fsdp2-full": Engine("FSDP2", "fsdp2.yaml", "tied", FULL),
    "fsdp2-activation-checkpointing": Engine(
        *("FSDP2", "fsdp2.yaml", "untied", ("--fsdp_activation_checkpointing", "true")),
        overrides=("training.gradient_checkpointing=false",),
    ),
    "fsdp2-sharded-teachers": Engine("FSDP2", "fsdp2.yaml", "tied", overrides=("training.teacher_placement=sharded",)),
    "fsdp2-lora": Engine("FSDP2", "fsdp2.yaml", "lora", combined=(OF_ADAPTERS,)),
    "fsdp2-lora-full": Engine("FSDP2", "fsdp2.yaml", "lora", FULL),
    "zero2": Engine("ZeRO-2", "zero2.yaml", "tied", changes_processes=False, combined=(*OF_MODELS,)),
    "zero2-lora": Engine("ZeRO-2", "zero2.yaml", "lora", changes_processes=False, combined=(OF_ADAPTERS,)),
    "zero3": Engine("ZeRO-3", "zero3.yaml", "untied", changes_processes=False, combined=(*OF_MODELS,)),
    "zero3-lora": Engine("ZeRO-3", "zero3.yaml", "lora", changes_processes=False, combined=(OF_ADAPTERS,)),
}


def write_recipes(folder: Path) -> None:
    """`tied` and `untied` train all weights; `own` too, and one of its teachers has a reference of its own. `lora`
    trains an adapter, and its teachers are adapters."""
    prompts = folder / "prompts.jsonl"
    tiny.prompts(len(LENGTHS)).to_json(prompts)
    for name, tied in (("tied", True), ("untied", False), ("own", True), ("lora", True)):
        base = tiny.model(0, tied=tied)
        teachers = {}
        for seed, teacher in enumerate(replay.TEACHERS, 1):
            path = folder / name / teacher
            if name == "lora":
                teachers[teacher] = {"adapter": str(tiny.adapter(base, path, seed))}
            else:
                teachers[teacher] = tiny.save(tiny.specialist(base, seed), path)
        if name == "own":
            start = tiny.save(tiny.specialist(base, 11), folder / name / "start")
            teachers[replay.TEACHERS[0]] = {"model": teachers[replay.TEACHERS[0]], "reference": start}
        fields = {
            "name": name,
            "student": tiny.save(base, folder / name / "student"),
            "teachers": teachers,
            "prompts": {"path": str(prompts)},
            "training": TRAINING,
        }
        if name == "lora":
            fields["peft"] = {"r": 4, "target_modules": ["q_proj", "v_proj"]}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(fields))


class Watched(replay.ReplayedTrainer):
    """With fixed rollouts; keeps the gradient of every step."""

    last: "Watched"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.replay(LENGTHS)
        self.gradients: list[dict[str, Tensor]] = []
        Watched.last = self

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        if not self.is_deepspeed_enabled:
            loss = super().training_step(model, inputs, num_items_in_batch)
            if self.accelerator.sync_gradients:
                self.gradients.append(_gradients(self.model_wrapped))
            return loss
        step = model.step  # which accelerate calls inside backward

        def watched_step(*args: Any, **kwargs: Any) -> None:
            if model.is_gradient_accumulation_boundary():
                self.gradients.append(_gradients(self.model))
            step(*args, **kwargs)

        with mock.patch.object(model, "step", watched_step):
            return super().training_step(model, inputs, num_items_in_batch)


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "_hp_mapping") or hasattr(parameter, "ds_id"):
            from deepspeed.utils import safe_get_full_grad

            gradient = safe_get_full_grad(parameter) if parameter.requires_grad else None
        else:
            gradient = parameter.grad
        if gradient is not None:
            whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            name = name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "")
            found[name] = whole.detach().clone()
    return found


def train(recipe: Path, output: Path, *options: str, replayed: bool = True) -> int:
    """The exit status of `trustmopd train`."""
    own = ["training.use_cpu=true"] if os.environ.get("ACCELERATE_USE_DEEPSPEED") != "true" else []
    kind = Watched if replayed else prepare.TrustMOPDTrainer
    with mock.patch.object(prepare, "TrustMOPDTrainer", kind):
        return app(["train", str(recipe), f"output={output}", *own, *options], standalone_mode=False) or 0


def keep_until(run: Path, step: int, copy: Path) -> Path:
    """A copy of a run as it was when this step's checkpoint was its last."""
    shutil.copytree(run, copy)
    for checkpoint in (copy / "checkpoints").glob("checkpoint-*"):
        if int(checkpoint.name.partition("-")[2]) > step:
            shutil.rmtree(checkpoint)
    return copy


def metrics(run: Path) -> list[dict[str, float]]:
    """Of every step."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in metrics(run)]


def start_and_resume(recipe: Path, folder: Path, *overrides: str, combined: Sequence[str] = ()) -> None:
    """Leaves the runs `whole`, `resumed`, `sampled` and the combined ones, and the gradients of all but `sampled`."""
    _train_watched(recipe, folder / "whole", *overrides)
    if Watched.last.accelerator.is_main_process:
        keep_until(folder / "whole", MIDDLE, folder / "resumed")
    Watched.last.accelerator.wait_for_everyone()
    assert train(recipe, folder / "resumed", "--resume", "--dry-run", *overrides) == 0
    _train_watched(recipe, folder / "resumed", "--resume", *overrides)
    assert train(recipe, folder / "sampled", "training.max_steps=1", *overrides, replayed=False) == 0
    if Watched.last.is_deepspeed_enabled:  # which does not go with vLLM; the test reads what this says
        assert train(recipe, folder / "vllm", "training.use_vllm=true", "--dry-run", *overrides) == 1
    for name in combined:
        other, changes = COMBINED[name]
        short = ("training.max_steps=2", "training.save_strategy=no")
        _train_watched(recipe.with_stem(other), folder / name, *short, *changes)


def _train_watched(recipe: Path, run: Path, *overrides: str) -> None:
    assert train(recipe, run, *overrides) == 0
    if Watched.last.accelerator.is_main_process:
        torch.save(Watched.last.gradients, run / "gradients.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    on_cpu.allow_sharding()
    what, recipe, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    status = 0
    if what == "start_and_resume":
        combined, *overrides = sys.argv[4:]
        start_and_resume(recipe, folder, *overrides, combined=json.loads(combined))
    else:
        status = train(recipe, folder, *sys.argv[4:], replayed=what != "sampled")
    leaving(lambda: sys.exit(status))
