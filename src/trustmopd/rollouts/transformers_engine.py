"""transformers' `generate`, on a model that is lent for the time of a call."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

from trustmopd.checkpoints.loading import load_complete
from trustmopd.rollouts import Completion, Params, loading, seed_of
from trustmopd.rollouts.cpu_sampling import can_use_rounds, faster_on_cpu, generate_in_rounds, plain

TAKES_ADAPTERS = True


@dataclass
class TransformersEngine:
    """`lend` gives the model: a trainer unwraps its own and takes it back. `config` has what `Params` does not say;
    a checkpoint's own is not read, since its penalties and top-k would be this engine's alone. Once `stop` says so,
    responses end at the next token."""

    lend: Callable[[], AbstractContextManager[Any]]
    device: Any
    ends: list[int]
    pad_token_id: int
    config: GenerationConfig
    context: int = 2**31
    pad_to_multiple_of: int | None = None
    stop: Callable[[], bool] = lambda: False

    def sample(self, prompt_ids: Sequence[list[int]], params: Params) -> list[Completion]:
        """One generator serves a whole batch: `draws` are those of the batch, not of one request."""
        step = self.pad_to_multiple_of or 1
        width = -(-max(map(len, prompt_ids)) // step) * step
        input_ids = torch.tensor([[self.pad_token_id] * (width - len(ids)) + ids for ids in prompt_ids])
        mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompt_ids])
        if params.draws is not None:
            torch.manual_seed(seed_of(params.draws))
        with self.lend() as model, torch.no_grad(), faster_on_cpu(model), _own_settings_aside(model):
            config = self._config(params, self.context - width)
            # an option of the engine's own may count a response's tokens, such as min_new_tokens
            in_rounds = not params.options and can_use_rounds(model, len(prompt_ids), config)
            generate = partial(generate_in_rounds, model) if in_rounds else model.generate
            made: Any = generate(
                input_ids=input_ids.to(self.device),
                attention_mask=mask.to(self.device),
                generation_config=config,
                logits_processor=finite_logits(model),
                stopping_criteria=StoppingCriteriaList([self._stopped]),
            )
        logits = torch.stack(made.logits, dim=1) if params.logprobs else None
        new = (made.sequences if params.logprobs else made)[:, width:]
        return [
            self._completion(ids, None if logits is None else logits[row]) for row, ids in enumerate(new.cpu().tolist())
        ]

    def _stopped(self, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.full(input_ids.shape[:1], self.stop(), device=input_ids.device)

    def _completion(self, ids: list[int], logits: Tensor | None) -> Completion:
        end = next((place for place, token in enumerate(ids) if token in self.ends), None)
        kept = ids if end is None else ids[: end + 1]
        logprobs = None
        if logits is not None:
            logp = logits[: len(kept)].float().log_softmax(dim=-1)
            logprobs = logp.gather(1, torch.tensor(kept, device=logp.device)[:, None])[:, 0].tolist()
        return Completion(kept, end is None, logprobs)

    def _config(self, params: Params, room: int) -> GenerationConfig:
        sampled = params.temperature > 0
        given = {
            "max_new_tokens": min(params.max_new_tokens, room),
            "do_sample": sampled,
            "eos_token_id": self.ends,
            "pad_token_id": self.pad_token_id,
            "repetition_penalty": params.repetition_penalty,
        }
        if sampled:  # transformers warns of these where nothing is sampled
            given |= {name: getattr(params, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        if params.logprobs:
            given |= {"output_logits": True, "return_dict_in_generate": True}
        config = copy.deepcopy(self.config)
        config.update(**given | dict(params.options))
        return config


@contextmanager
def _own_settings_aside(model: Any) -> Iterator[None]:
    """`generate` takes what our settings leave open from the model's own: beams, forced tokens, no cache."""
    base = plain(model)
    own, base.generation_config = base.generation_config, GenerationConfig()
    try:
        yield
    finally:
        base.generation_config = own


class NotFinite(FloatingPointError):
    """A model gave NaN or infinite logits while it sampled. CUDA would end the whole process, with no word on the
    cause."""


class _Check(LogitsProcessor):
    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        largest = scores.max(dim=-1).values  # NaN if one is
        if not bool(torch.isfinite(largest).all()):
            rows = int((~torch.isfinite(largest)).sum())
            raise NotFinite(
                f"{rows} of {len(scores)} responses have logits that are not finite at token {input_ids.shape[1]}, "
                f"prompt included. {_cause(self.model)}"
            )
        return scores


def finite_logits(model: Any) -> LogitsProcessorList:
    """What `generate` takes as `logits_processor`."""
    return LogitsProcessorList([_Check(model)])


def _cause(model: Any) -> str:
    damaged = [name for name, weight in model.named_parameters() if not bool(torch.isfinite(weight).all())]
    if damaged:
        return (
            f"{len(damaged)} of its tensors have NaN or infinite weights, the first {damaged[0]}. Its files are "
            "damaged, or training diverged: then lower the learning rate."
        )
    return "Its weights are finite, so the fault is in the sampling: try it without a compiled cache."


class LoadedTransformers(TransformersEngine):
    """Load a checkpoint, on a GPU if there is one."""

    def __init__(self, parts: Sequence[tuple[str, str | None]], dtype: str | None, batch_size: int) -> None:
        (place, revision), *adapters = parts
        with loading(place):
            self.tokenizer = AutoTokenizer.from_pretrained(place, revision=revision, padding_side="left")
            model = load_complete(place, revision=revision, dtype=dtype or "auto")
        for adapter, its_revision in adapters:
            from peft import PeftModel

            with loading(adapter):
                model = PeftModel.from_pretrained(model, adapter, revision=its_revision)
        self.batch = batch_size
        self.model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        ends = sorted({end for end in (*ends, self.tokenizer.eos_token_id) if end is not None})
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        super().__init__(
            lambda: nullcontext(self.model),
            device=self.model.device,
            ends=ends,
            pad_token_id=self.tokenizer.pad_token_id,
            config=GenerationConfig(),
            context=getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31,
        )

    def finished(self, prompt_ids: Sequence[list[int]], params: Params) -> Iterator[list[tuple[int, Completion]]]:
        yield list(enumerate(self.sample(prompt_ids, params)))


def check() -> None:
    """Always available."""


def load(parts: Sequence[tuple[str, str | None]], dtype: str | None, *, batch_size: int) -> LoadedTransformers:
    return LoadedTransformers(parts, dtype, batch_size)
