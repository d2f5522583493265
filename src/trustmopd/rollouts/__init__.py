"""What turns prompts into responses: `sample(prompt_ids, params)` for training, calibration and diagnosis, and
`finished(…)`, which gives them as they come, for evaluation. An engine is one file here, `<name>_engine.py`, and
its name in `recipe.names.ENGINES`."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

from pydantic import ValidationError

from trustmopd.recipe.names import check_engine_name
from trustmopd.util.messages import first_line

#: The end of a message about an engine that failed, in calibration too.
RESUME = (
    "Run again with --resume: it goes on from the last checkpoint, which is complete, or from the start without one."
)


class EngineError(RuntimeError):
    """The engine cannot be relied on: a message for the user, not a mistake in the code."""


@dataclass(frozen=True)
class Params:
    """How responses are drawn. `draws` names each request's random numbers, so that they depend on what is asked
    and not on when; None draws from the process's generator. `options` are the engine's own."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    draws: Sequence[str] | None = None
    logprobs: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """The response's tokens, its end token among them. `logprobs`, where asked for, are of these tokens at temperature
    1 over the whole vocabulary. `truncated`: it ran into the limit."""

    ids: list[int]
    truncated: bool
    logprobs: list[float] | None = None


class Engine(Protocol):
    def sample(self, prompt_ids: Sequence[list[int]], params: Params) -> list[Completion]: ...


class LoadedEngine(Protocol):
    """An engine that has loaded a checkpoint. `batch` is how many requests it takes at a time, `context` the most
    tokens of prompt and response together. Responses come as they are `finished`, some at a time, each with the place
    of its prompt."""

    tokenizer: Any
    context: int
    batch: int

    def finished(self, prompt_ids: Sequence[list[int]], params: Params) -> Iterator[list[tuple[int, Completion]]]: ...


def engine_module(name: str) -> ModuleType:
    """The engine's file. It has `check()`, which raises where the engine cannot run here; `load(parts, dtype, …)`;
    and `TAKES_ADAPTERS`."""
    return import_module(f"{__name__}.{check_engine_name(name)}_engine")


def adapter_refused(engine: str, adapter: str) -> str:
    """Why this engine cannot evaluate an adapter, and what to do; empty if it can. `adapter` is what to call it."""
    if engine_module(engine).TAKES_ADAPTERS:
        return ""
    return (
        f"engine {engine} evaluates full checkpoints, and {adapter} is an adapter. Merge it into its base first "
        "(trustmopd merge ADAPTER --out FOLDER), or use engine transformers."
    )


def seed_of(draws: Iterable[str]) -> int:
    """One seed of the names of some draws. 32 bits: what every engine takes."""
    return int.from_bytes(hashlib.blake2b("\n".join(draws).encode(), digest_size=4).digest(), "big")


def reason(error: Exception) -> str:
    """The first line of an error's message, with its class where the message alone is not enough. The first line of
    pydantic's only counts the problems."""
    if isinstance(error, ValidationError):
        return "; ".join(": ".join([*map(str, each["loc"]), first_line(each["msg"])]) for each in error.errors())
    line = first_line(error)
    return line if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {line}"


@contextmanager
def loading(place: str) -> Iterator[None]:
    """Errors inside name the checkpoint that could not be loaded."""
    try:
        yield
    except Exception as error:  # safetensors, tokenizers and the Hub's client raise a class for each way to fail
        raise ValueError(
            f"cannot load {place!r} ({reason(error)}). Check the path or Hub id, and that its files are whole."
        ) from error
