"""The engine of a trainer's rollouts, and how they are drawn."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trl.extras.profiling import profiling_context
from trl.models import unwrap_model_for_generation

from trustmopd.engines import Engine, Params
from trustmopd.engines.transformers_engine import TransformersEngine
from trustmopd.training.config import TrustMOPDConfig

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer


def rollout_params(args: TrustMOPDConfig) -> Params:
    assert args.max_completion_length is not None
    return Params(
        max_new_tokens=args.max_completion_length,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        options=args.generation_kwargs or {},
    )


def rollout_engine(trainer: "TrustMOPDTrainer") -> Engine:
    return TransformersEngine(
        lambda: _lent_student(trainer),
        device=trainer.accelerator.device,
        ends=trainer.eos_token_ids,
        pad_token_id=trainer._tokenizer.pad_token_id,
        config=trainer.generation_config,
        pad_to_multiple_of=trainer.args.pad_to_multiple_of,
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
