"""How an engine is started: the launcher's command for a row of a plan, and what a launch has asked for."""

import os
from collections.abc import Sequence
from typing import Any

from trustmopd.planning.workload import DDP, FSDP2, ZERO3, Setup

#: Where the launcher's files are: in the repository, not in the package.
ACCELERATE = "recipes/accelerate"
#: The launcher's file for each engine, and the field of a recipe that asks for the same.
FILES = {DDP: "ddp.yaml", FSDP2: "fsdp2.yaml", ZERO3: "zero3.yaml"}
FIELDS = {FSDP2: "training.fsdp", ZERO3: "training.deepspeed"}


def launch_command(setup: Setup, words: Sequence[str]) -> list[str]:
    """`words` are those after `trustmopd train`. On several nodes the command runs on each of them, with its own
    RANK."""
    if setup.world == 1 and setup.engine == DDP:
        return ["trustmopd", "train", *words]
    nodes = ["--num_machines", str(setup.nodes), "--machine_rank", "RANK", "--main_process_ip", "FIRST_NODE"]
    where = [*nodes, "--main_process_port", "29500"] if setup.nodes > 1 else []
    launcher = ["accelerate", "launch", "--config_file", f"{ACCELERATE}/{FILES[setup.engine]}", *where]
    return [*launcher, "--num_processes", str(setup.world), "-m", "trustmopd", "train", *words]


def check_joined(joined: int, processes: int, start: str) -> None:
    """`joined` is vllm_tensor_parallel_size of colocated engines, of which each process has one, on its GPU. `start`
    says how to have another number of processes."""
    if processes % joined:
        there = "is only one" if processes == 1 else f"are {processes}"
        raise ValueError(
            f"vllm_tensor_parallel_size = {joined} joins the engines of as many processes, one to a GPU, but there "
            f"{there}. {start}, or set it to 1."
        )


def asked_engine(args: Any) -> str:
    """By the recipe's fields or by the launcher: DDP, FSDP1, FSDP2, ZeRO-1, … One process alone may ask as well."""
    if args.deepspeed_plugin is not None:
        return f"ZeRO-{args.deepspeed_plugin.zero_stage}"
    if args.fsdp:
        return f"FSDP{args.fsdp_plugin_args['fsdp_version']}"
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        return f"FSDP{os.environ.get('FSDP_VERSION', '1')}"
    return DDP
