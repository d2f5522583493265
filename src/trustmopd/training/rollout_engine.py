"""The engine of a trainer's rollouts, and how they are drawn."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from trl.extras.profiling import profiling_context
from trl.models import unwrap_model_for_generation

from trustmopd.engines import Engine, Params
from trustmopd.engines.transformers_engine import TransformersEngine
from trustmopd.training.config import TrustMOPDConfig

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer


def rollout_params(args: TrustMOPDConfig, draws: Sequence[str]) -> Params:
    """transformers draws from torch's generator, which checkpoints keep; vLLM has a seed for each of `draws`."""
    assert args.max_completion_length is not None
    return Params(
        max_new_tokens=args.max_completion_length,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        draws=draws if args.use_vllm else None,
        logprobs=args.use_vllm,
        options=args.generation_kwargs or {},
    )


def rollout_engine(trainer: "TrustMOPDTrainer", longest: int) -> Engine:
    """`longest` is the most tokens that a prompt and its response have together."""
    if trainer.args.use_vllm:
        return _vllm(trainer, longest)
    return TransformersEngine(
        lambda: _lent_student(trainer),
        device=trainer.accelerator.device,
        ends=trainer.eos_token_ids,
        pad_token_id=trainer._tokenizer.pad_token_id,
        config=trainer.generation_config,
        pad_to_multiple_of=trainer.args.pad_to_multiple_of,
    )


def _vllm(trainer: "TrustMOPDTrainer", longest: int) -> Engine:
    """TRL's settings under TRL's names, but for the dtype, which follows the student's."""
    from trustmopd.engines.vllm_rollouts import VLLMRollouts

    args = trainer.args
    assert args.gradient_accumulation_steps is not None
    named = (
        *("mode", "model_impl", "structured_outputs_regex", "server_base_url", "server_host", "server_port"),
        *("server_timeout", "group_port", "tensor_parallel_size", "gpu_memory_utilization", "enable_sleep_mode"),
    )
    mixed = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
    return VLLMRollouts(
        dtype=mixed or next(p.dtype for p in trainer.model.parameters() if p.is_floating_point()),
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


@contextmanager
def _lent_student(trainer: "TrustMOPDTrainer") -> Iterator[Any]:
    """The student itself, whole and without its wrappers, as TRL lends it to `generate`."""
    with (
        profiling_context(trainer, "transformers.generate"),
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            generation_kwargs=trainer.generation_kwargs,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as student,
        trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False),
    ):
        yield student
