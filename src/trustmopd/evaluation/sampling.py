"""Responses from a checkpoint, by any engine: the same requests, the same replies."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import field_validator

from trustmopd.evaluation.benchmark import Benchmark, Messages, Row
from trustmopd.evaluation.entries import is_adapter, parts
from trustmopd.evaluation.graders.reasoning import OPEN
from trustmopd.recipe import Asking
from trustmopd.recipe.teacher_source import TeacherSource
from trustmopd.rollouts import LoadedEngine, Params, adapter_refused, engine_module, reason
from trustmopd.runs.schemas import ASKED_WITH


class Sampling(Asking):
    """Engines round differently, so they may draw different responses. `system` opens conversations that have no system
    message of their own."""

    seed: int = 0

    @field_validator(*ASKED_WITH)
    @classmethod
    def _none_if_empty(cls, value: Any) -> Any:
        return value or None


class Request(NamedTuple):
    """One response wanted: the prompt's id, which sample of it, the conversation, and its arguments of the chat
    template."""

    id: str
    sample: int
    messages: list[dict[str, Any]]
    options: Mapping[str, Any] = {}


def put(benchmark: Benchmark, row: Row, sampling: Sampling) -> tuple[Messages, dict[str, Any]]:
    """How a row is put to a checkpoint: messages, and arguments of the chat template. The row's own go first."""
    messages = benchmark.prompt(row)
    if sampling.system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": sampling.system}, *messages]
    own = {**(row.get("chat_template_kwargs") or {}), "tools": row.get("tools") or None}
    given = {name: value for name, value in own.items() if value is not None}  # Parquet has the names of all rows
    return messages, {**(sampling.chat_template_kwargs or {}), **given}


class Response(NamedTuple):
    """`truncated`: it ran into the limit. `overlong`: its prompt leaves no room in the model's context."""

    request: Request
    response: str
    tokens: int
    truncated: bool
    overlong: bool
    seconds: float


def check_engine(name: str, source: TeacherSource) -> None:
    """Checks that need no model."""
    adapter = source.adapter or (is_adapter(str(source.model)) and source.model)
    if adapter and (problem := adapter_refused(name, repr(adapter))):
        raise ValueError(problem)
    engine_module(name).check()


def make_sampler(
    name: str,
    source: TeacherSource,
    base: str | None = None,
    *,
    batch_size: int,
    options: Mapping[str, Any] | None = None,
) -> "Sampler":
    """`base` is the model of an adapter that names none; `options` are the engine's own."""
    check_engine(name, source)
    engine = engine_module(name).load(parts(source, base), source.dtype, batch_size=batch_size, **options or {})
    return Sampler(engine)


def render(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> tuple[list[int], str]:
    """The prompt as the checkpoint's chat template has it, and what the template has already written of the response:
    reasoning models' templates may open the reasoning block."""
    if tokenizer.chat_template is None:
        raise ValueError(
            f"{tokenizer.name_or_path!r} has no chat template, so it is unknown how it is asked. Evaluate an instruct "
            "checkpoint, or save its tokenizer with the template it was trained with."
        )
    text = templated(tokenizer, messages, options)
    return tokenizer(text, add_special_tokens=False)["input_ids"], OPEN if text.rstrip().endswith(OPEN) else ""


def templated(tokenizer: Any, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
    """Some templates refuse a system message: then its text goes before the user's."""
    forms = [messages]
    if len(messages) > 1 and [message["role"] for message in messages[:2]] == ["system", "user"]:
        text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
        forms.append([{"role": "user", "content": text}, *messages[2:]])
    reasons = []
    for form in forms:
        try:
            return tokenizer.apply_chat_template(form, tokenize=False, add_generation_prompt=True, **options)
        except Exception as error:  # a template is a program of the checkpoint's, and fails in its own ways
            reasons.append(reason(error))
    roles = ", ".join(message["role"] for message in messages)
    raise ValueError(
        f"the chat template of {tokenizer.name_or_path!r} does not take a conversation of {roles} ({reasons[0]}). Fix "
        "the template, or leave this benchmark out."
    )


class Sampler:
    """Conversations to an engine and its tokens back to text, in batches of the engine's own size."""

    def __init__(self, engine: LoadedEngine) -> None:
        self.engine = engine

    def sample(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Response]:
        batch: list[tuple[Request, list[int], str]] = []
        for request in requests:
            tokens, opened = render(self.engine.tokenizer, request.messages, **request.options)
            if len(tokens) >= self.engine.context:
                yield Response(request, "", 0, False, True, 0.0)
                continue
            batch.append((request, tokens, opened))
            if len(batch) == self.engine.batch:
                yield from self._batch(batch, sampling)
                batch = []
        if batch:
            yield from self._batch(batch, sampling)

    def _batch(self, batch: list[tuple[Request, list[int], str]], sampling: Sampling) -> Iterator[Response]:
        params = Params(
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            draws=[f"{sampling.seed}/{request.id}/{request.sample}" for request, _, _ in batch],
        )
        since = time.monotonic()
        for some in self.engine.finished([tokens for _, tokens, _ in batch], params):
            seconds = (time.monotonic() - since) / len(some)
            for place, found in some:
                request, _, opened = batch[place]
                text = opened + self.engine.tokenizer.decode(found.ids, skip_special_tokens=True)
                yield Response(request, text, len(found.ids), found.truncated, False, seconds)
            since = time.monotonic()
