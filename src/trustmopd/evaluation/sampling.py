"""Responses from a checkpoint, by transformers or by vLLM: the same requests, the same replies."""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from trustmopd.evaluation.checkpoint import is_adapter, parts
from trustmopd.evaluation.reasoning import OPEN
from trustmopd.teacher_source import TeacherSource


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn. The paper states the temperature alone; the others are Open-MOPD's, whose models it
    uses. `samples` None: each benchmark's own."""

    temperature: float = 0.6
    top_p: float = 1.0
    max_new_tokens: int = 30_000
    seed: int = 0
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ValueError(
                f"temperature {self.temperature} and top-p {self.top_p} draw nothing: the first must be 0 (greedy) or "
                "more, the second above 0 and at most 1. Leave them out for 0.6 and 1."
            )


class Request(NamedTuple):
    """One response wanted: the prompt's id, which sample of it, and the conversation."""

    id: str
    sample: int
    messages: list[dict[str, str]]


class Reply(NamedTuple):
    """`truncated`: it ran into the limit. `overlong`: its prompt leaves no room in the model's context."""

    request: Request
    response: str
    tokens: int
    truncated: bool
    overlong: bool
    seconds: float


class Engine(Protocol):
    def sample(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Reply]: ...


def check_engine(name: str, source: TeacherSource) -> None:
    """What can be known before an hour is spent, or anything is written."""
    if name not in ("transformers", "vllm"):
        raise ValueError(f"there is no engine {name!r}. Choose transformers or vllm.")
    if name == "transformers":
        return
    if source.adapter or is_adapter(str(source.model)):
        raise ValueError(
            f"--engine vllm evaluates full checkpoints, and {source.adapter or source.model!r} is an adapter. Merge it "
            "into its base first (trustmopd merge ADAPTER --out FOLDER), or use --engine transformers."
        )
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"--engine vllm needs vLLM ({error}). Install it: pip install 'trustmopd[vllm]'; or use --engine "
            "transformers."
        ) from error


def make_engine(
    name: str,
    source: TeacherSource,
    base: str | None = None,
    *,
    batch_size: int,
    options: Mapping[str, Any] | None = None,
) -> Engine:
    """`base` is the model of an adapter that names none."""
    check_engine(name, source)
    return VLLMEngine(source, options or {}) if name == "vllm" else TransformersEngine(source, batch_size, base)


def render(tokenizer: Any, messages: list[dict[str, str]]) -> tuple[list[int], str]:
    """The prompt as the checkpoint's chat template has it, and what the template has already written of the response:
    reasoning models' templates may open the reasoning block."""
    if tokenizer.chat_template is None:
        raise ValueError(
            f"{tokenizer.name_or_path!r} has no chat template, so it is unknown how it is asked. Evaluate an instruct "
            "checkpoint, or save its tokenizer with the template it was trained with."
        )
    text = _templated(tokenizer, messages)
    return tokenizer(text, add_special_tokens=False)["input_ids"], OPEN if text.rstrip().endswith(OPEN) else ""


def _templated(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """Some templates refuse a system message: then its text goes before the user's."""
    forms = [messages]
    if len(messages) > 1 and [message["role"] for message in messages[:2]] == ["system", "user"]:
        text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
        forms.append([{"role": "user", "content": text}, *messages[2:]])
    reasons = []
    for form in forms:
        try:
            return tokenizer.apply_chat_template(form, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program of the checkpoint's, and fails in its own ways
            reasons.append(_reason(error))
    roles = ", ".join(message["role"] for message in messages)
    raise ValueError(
        f"the chat template of {tokenizer.name_or_path!r} does not take a conversation of {roles} ({reasons[0]}). Fix "
        "the template, or leave this benchmark out."
    )


@contextmanager
def _loading(place: str | None) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # safetensors, tokenizers and the Hub's client raise a class for each way to fail
        raise ValueError(
            f"cannot load {place!r} ({_reason(error)}). Check the path or Hub id, and that its files are whole."
        ) from error


def _reason(error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    return said if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {said}"


def seed_of(seed: int, requests: Iterable[Request]) -> int:
    """Follows from what is asked and not from when: a run that was interrupted draws no number twice."""
    text = "\n".join(f"{seed}/{request.id}/{request.sample}" for request in requests)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


Asked = tuple[Request, list[int], str]


class _Batches:
    """Requests in batches of `size`, each with its tokens and what its template opened."""

    size: int
    context: int
    tokenizer: Any

    def sample(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Reply]:
        batch: list[Asked] = []
        for request in requests:
            tokens, opened = render(self.tokenizer, request.messages)
            if len(tokens) >= self.context:
                yield Reply(request, "", 0, False, True, 0.0)
                continue
            batch.append((request, tokens, opened))
            if len(batch) == self.size:
                yield from self._batch(batch, sampling)
                batch = []
        if batch:
            yield from self._batch(batch, sampling)

    def _batch(self, batch: list[Asked], sampling: Sampling) -> Iterator[Reply]:
        raise NotImplementedError


class TransformersEngine(_Batches):
    """Batches on one device, a GPU where there is one."""

    def __init__(self, source: TeacherSource, batch_size: int, base: str | None = None) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        device = "cuda" if torch.cuda.is_available() else "cpu"
        (place, revision), *adapters = parts(source, base)
        with _loading(place):
            self.tokenizer = AutoTokenizer.from_pretrained(place, revision=revision, padding_side="left")
            model = AutoModelForCausalLM.from_pretrained(place, revision=revision, dtype=source.dtype or "auto")
        for adapter in adapters:
            from peft import PeftModel

            with _loading(adapter.place):
                model = PeftModel.from_pretrained(model, adapter.place, revision=adapter.revision)
        self.model = model.to(device).eval()
        self.size = batch_size
        config = model.config.get_text_config()
        self.context = getattr(config, "max_position_embeddings", None) or 2**31
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        self.ends = sorted({end for end in (*ends, self.tokenizer.eos_token_id) if end is not None})
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def _batch(self, batch: list[Asked], sampling: Sampling) -> Iterator[Reply]:
        import torch
        from transformers import GenerationConfig

        began = time.monotonic()
        inputs = self.tokenizer.pad({"input_ids": [tokens for _, tokens, _ in batch]}, return_tensors="pt")
        width = inputs["input_ids"].shape[1]
        room = min(sampling.max_new_tokens, self.context - width)
        # A fresh configuration: a checkpoint's own may bring penalties and a top-k that the other engine would not use.
        drawn = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        config = GenerationConfig(
            max_new_tokens=room,
            do_sample=sampling.temperature > 0,
            eos_token_id=self.ends,
            pad_token_id=self.tokenizer.pad_token_id,
            **(drawn if sampling.temperature > 0 else {}),
        )
        torch.manual_seed(seed_of(sampling.seed, (request for request, _, _ in batch)))
        with torch.inference_mode():
            output = self.model.generate(**inputs.to(self.model.device), generation_config=config)[:, width:].tolist()
        seconds = (time.monotonic() - began) / len(batch)
        for (request, _, opened), tokens in zip(batch, output, strict=True):
            end = next((i for i, token in enumerate(tokens) if token in self.ends), None)
            kept = tokens if end is None else tokens[: end + 1]
            text = opened + self.tokenizer.decode(kept, skip_special_tokens=True)
            yield Reply(request, text, len(kept), end is None, False, seconds)


class VLLMEngine(_Batches):
    """Hundreds of requests at once: vLLM schedules them. `options` go to `vllm.LLM`, such as tensor_parallel_size."""

    size = 512  # what an interruption can cost

    def __init__(self, source: TeacherSource, options: Mapping[str, Any]) -> None:
        from transformers import AutoConfig
        from vllm import LLM

        # vLLM's "auto" would halve the precision of a float32 checkpoint, and answer otherwise than transformers does.
        with _loading(source.model):
            stored = AutoConfig.from_pretrained(source.model, revision=source.revision).dtype
        dtype = source.dtype or (str(stored).removeprefix("torch.") if stored is not None else "auto")
        with _loading(source.model):
            self.llm = LLM(model=source.model, revision=source.revision, dtype=dtype, **options)
        self.tokenizer = self.llm.get_tokenizer()
        self.context = self.llm.llm_engine.model_config.max_model_len

    def _batch(self, batch: list[Asked], sampling: Sampling) -> Iterator[Reply]:
        from vllm import SamplingParams

        began = time.monotonic()
        params = [
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=min(sampling.max_new_tokens, self.context - len(tokens)),
                seed=seed_of(sampling.seed, [request]),
            )
            for request, tokens, _ in batch
        ]
        prompts = [{"prompt_token_ids": tokens} for _, tokens, _ in batch]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        seconds = (time.monotonic() - began) / len(batch)
        for (request, _, opened), output in zip(batch, outputs, strict=True):
            found = output.outputs[0]
            truncated = found.finish_reason == "length"
            yield Reply(request, opened + found.text, len(found.token_ids), truncated, False, seconds)
