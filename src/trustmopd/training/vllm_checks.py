"""What a run needs to sample with vLLM, checked before any model is loaded."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from trustmopd.planning.launching import check_joined
from trustmopd.planning.this_machine import UnknownMemory, run_here
from trustmopd.policies import PolicyGraph
from trustmopd.policies.preflight.model_facts import positions_of
from trustmopd.rollouts.vllm_engine import can_sleep, check_architecture
from trustmopd.training.config import TrustMOPDConfig


def check_vllm_can_sample(model: Any, args: TrustMOPDConfig, longest: int) -> None:
    """`longest` is the most tokens that a prompt and its response have together."""
    named = isinstance(model, (str, Path))
    config = AutoConfig.from_pretrained(model, trust_remote_code=args.trust_remote_code) if named else model.config
    source = str(model) if named else model.name_or_path
    if not source:
        raise ValueError(
            "vLLM loads the student from its path, but this model object has none. Save it with its "
            "tokenizer (save_pretrained), and give the path."
        )
    if args.vllm_mode == "colocate":
        _check_colocated(args)
    check_architecture((config.architectures or [type(model).__name__])[0], source, args.vllm_model_impl)
    if args.vllm_max_model_length is not None and args.vllm_max_model_length < longest:
        raise ValueError(
            f"vllm_max_model_length = {args.vllm_max_model_length} is less than {longest}, the tokens of the longest "
            "prompt plus max_completion_length, so responses would be cut. Raise it, or leave it unset."
        )
    positions = positions_of(config.get_text_config())
    if positions is not None and (args.vllm_max_model_length or 0) > positions:
        raise ValueError(
            f"vllm_max_model_length = {args.vllm_max_model_length}, but {source} has {positions} positions. Lower it, "
            "or leave it unset."
        )


def _check_colocated(args: TrustMOPDConfig) -> None:
    start = "Start a multiple of it (accelerate launch --num_processes)"
    check_joined(args.vllm_tensor_parallel_size, args.world_size, start)
    if args.vllm_enable_sleep_mode and not can_sleep():
        raise ValueError("vllm_enable_sleep_mode = True, but vLLM can only sleep on a GPU. Set it to False here.")


def check_memory_beside_vllm(graph: PolicyGraph, model: Any, args: TrustMOPDConfig, lora: Any, prompt: int) -> None:
    """Of a colocated vLLM; `prompt` is the longest."""
    if not torch.cuda.is_available() or args.use_cpu or args.vllm_mode != "colocate":
        return
    try:
        need = run_here(graph, model, args, lora, prompt)
    except UnknownMemory:
        return
    need.check_beside_vllm(args.max_tokens_per_micro_batch or 0)
