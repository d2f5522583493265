"""Which engine samples a trainer's rollouts, and with which settings."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from trustmopd.recipe.rollout_engines import VLLM
from trustmopd.rollouts import Engine
from trustmopd.rollouts.transformers_engine import TransformersEngine
from trustmopd.training.config import TrustMOPDConfig

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer


def rollout_engine(trainer: "TrustMOPDTrainer", longest: int) -> Engine:
    """`longest` is the most tokens that a prompt and its response have together."""
    return _START[trainer.args.rules.rollouts.engine](trainer, longest)


def _transformers(trainer: "TrustMOPDTrainer", longest: int) -> Engine:
    if trainer.args.cache_implementation is not None:
        # Compile the decoding step, which TRL turns off. One size of the cache for all batches: compiled once.
        trainer.generation_config.disable_compile = False
        trainer.generation_config.max_cache_len = longest
    return TransformersEngine(
        trainer.lent_student,
        device=trainer.accelerator.device,
        ends=list(trainer.eos_token_ids),
        pad_token_id=trainer._tokenizer.pad_token_id,
        config=trainer.generation_config,
        pad_to_multiple_of=trainer.args.pad_to_multiple_of,
        stop=lambda: trainer.preemption.asked,
    )


def _vllm(trainer: "TrustMOPDTrainer", longest: int) -> Engine:
    """TRL's settings under TRL's names, except the dtype, which is the student's."""
    from trustmopd.rollouts.vllm_rollouts import VLLMRollouts

    args = trainer.args
    assert args.gradient_accumulation_steps is not None
    named = (
        *("mode", "model_impl", "structured_outputs_regex", "server_base_url", "server_host", "server_port"),
        *("server_timeout", "group_port", "tensor_parallel_size", "gpu_memory_utilization", "enable_sleep_mode"),
    )
    return VLLMRollouts(
        dtype=rollout_dtype(args, trainer.model),
        limit=args.rollout_timeout,
        model=trainer.model,
        accelerator=trainer.accelerator,
        processing_class=trainer.processing_class,
        max_model_length=args.vllm_max_model_length or longest,
        max_num_seqs=args.per_device_train_batch_size
        * args.vllm_tensor_parallel_size
        * args.gradient_accumulation_steps,
        trust_remote_code=args.trust_remote_code,
        **{name: getattr(args, f"vllm_{name}") for name in named},
    )


#: By the engine's name, as in `recipe.rollout_engines.ROLLOUTS`.
_START = {"transformers": _transformers, "vllm": _vllm}


def rollout_dtype(args: TrustMOPDConfig, student: nn.Module) -> torch.dtype:
    """What vLLM computes in. A server has a dtype of its own, 16 bits unless it was started with another."""
    if args.mixed_dtype is None and args.rules.rollouts.engine == VLLM and args.vllm_mode == "server":
        return torch.bfloat16
    return args.mixed_dtype or next(p.dtype for p in student.parameters() if p.is_floating_point())
