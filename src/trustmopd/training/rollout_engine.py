"""How a trainer's rollouts are sampled: by which engine, with which settings, in which turns."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import GenerationConfig
from trl.extras.profiling import profiling_context
from trl.models import unwrap_model_for_generation

from trustmopd.rollouts import Completion, Engine, Params
from trustmopd.rollouts.transformers_engine import TransformersEngine
from trustmopd.training.config import TrustMOPDConfig

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer


class Turns:
    """The responses to one batch of prompts. With tools, a response takes several turns."""

    def __init__(self, args: TrustMOPDConfig, pad_token_id: int):
        self.args = args
        self.pad_token_id = pad_token_id
        self.first: list[Completion] | None = None
        self._draws: Sequence[str] = ()
        self._turn = 0

    def begin(self, draws: Sequence[str]) -> None:
        """A new batch; `draws` name the random numbers of each of its prompts."""
        self.first, self._draws, self._turn = None, draws, 0

    def sample(self, engine: Engine, prompt_ids: list[list[int]]) -> list[list[int]]:
        self._turn += 1
        if self._turn > 1:  # some rows again, after their tools ran; TRL accepts empty completions here
            draws = [f"{self._draws[0]}, turn {self._turn}, place {place}" for place in range(len(prompt_ids))]
            return [made.ids for made in engine.sample(prompt_ids, rollout_params(self.args, draws))]
        self.first = engine.sample(prompt_ids, rollout_params(self.args, self._draws))
        # TRL reads the last token of every completion. An empty one gets a padding token, which the trainer masks.
        return [made.ids or [self.pad_token_id] for made in self.first]

    @property
    def empty(self) -> list[int]:
        """The rows whose response has no token."""
        return [row for row, made in enumerate(self.first or []) if not made.ids]


def rollout_params(args: TrustMOPDConfig, draws: Sequence[str]) -> Params:
    """transformers draws from torch's generator, whose state is in the checkpoints. vLLM gets a seed for each of
    `draws`."""
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
    if trainer.args.cache_implementation is not None:
        _compile_cache(trainer.generation_config, longest)
    return TransformersEngine(
        lambda: _lent_student(trainer),
        device=trainer.accelerator.device,
        ends=list(trainer.eos_token_ids),
        pad_token_id=trainer._tokenizer.pad_token_id,
        config=trainer.generation_config,
        pad_to_multiple_of=trainer.args.pad_to_multiple_of,
    )


def _compile_cache(generation: GenerationConfig, longest: int) -> None:
    """Compile the decoding step with a cache of fixed size; TRL turns this off. One size for all batches, so it is
    compiled once."""
    generation.disable_compile = False
    generation.max_cache_len = longest


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


def rollout_dtype(args: TrustMOPDConfig, student: nn.Module) -> torch.dtype:
    """What vLLM computes in. A server has a dtype of its own, 16 bits unless it was started with another."""
    if args.mixed_dtype is None and args.use_vllm and args.vllm_mode == "server":
        return torch.bfloat16
    return args.mixed_dtype or next(p.dtype for p in student.parameters() if p.is_floating_point())


@contextmanager
def _lent_student(trainer: "TrustMOPDTrainer") -> Iterator[Any]:
    """The student, gathered and without its wrappers, as TRL passes it to `generate`."""
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
