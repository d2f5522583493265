"""vLLM: whether it can be used here, and with a model; and on a checkpoint of its own, where it takes hundreds of
requests at once and schedules them itself."""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from typing import Any

import transformers
from packaging.specifiers import SpecifierSet
from safetensors import SafetensorError

from trustmopd.rollouts import Completion, EngineError, Params, loading, reason, seed_of

TAKES_ADAPTERS = False
#: What TRL 1.16 takes.
VERSIONS = ">=0.22,<0.32"


class VLLMEngine:
    """`options` go to `vllm.LLM`, such as tensor_parallel_size."""

    batch = 512

    def __init__(self, place: str, revision: str | None, dtype: str | None, **options: Any) -> None:
        from transformers import AutoConfig
        from vllm import LLM

        with loading(place):
            config = AutoConfig.from_pretrained(place, revision=revision)
        architecture = (config.architectures or [""])[0]
        if not any(code_for(architecture)):
            raise ValueError(
                f"vLLM {vllm_version()} has no code for {architecture}, the architecture of {place!r}, and cannot run "
                "transformers' code of it. Use engine transformers."
            )
        # vLLM's "auto" would load a float32 checkpoint in half precision, and answers would differ.
        dtype = dtype or (str(config.dtype).removeprefix("torch.") if config.dtype is not None else "auto")
        try:
            self.llm = LLM(model=place, revision=revision, dtype=dtype, **quick_start() | options)
        except Exception as error:  # vLLM passes on any error of its many parts
            unreadable = isinstance(error, OSError | SafetensorError)
            remedy = (
                "Check that its files are whole." if unreadable else "See its log above, or use engine transformers."
            )
            raise EngineError(f"vLLM could not start with {place!r} ({reason(error)}). {remedy}") from error
        self.tokenizer = self.llm.get_tokenizer()
        self.context = self.llm.llm_engine.model_config.max_model_len

    def finished(self, prompt_ids: Sequence[list[int]], params: Params) -> Iterator[list[tuple[int, Completion]]]:
        """By hand what `LLM.generate` does, which loses all of a batch if the engine dies before its last response."""
        engine = self.llm.llm_engine
        with sampling(
            "Finished responses are kept: the same command continues. If it fails again, look for the reason in vLLM's "
            "log above; if there is none, the system killed vLLM, most often for lack of memory. Or use engine "
            "transformers, with another --out."
        ):
            for place, ids in enumerate(prompt_ids):
                wanted = sampling_params(params, place, self.context - len(ids))
                engine.add_request(str(place), {"prompt_token_ids": ids}, wanted)
            while engine.has_unfinished_requests():
                _wait_for_output(engine.engine_core)
                if done := [(int(each.request_id), _completion(each.outputs[0])) for each in engine.step()]:
                    yield done


def _wait_for_output(client: Any) -> None:
    """vLLM itself would wait for ever where the engine's process was killed: its queue is not told."""
    if hasattr(client, "outputs_queue"):  # else the engine is in this process
        while client.outputs_queue.empty():
            client.ensure_alive()
            time.sleep(0.01)


@contextmanager
def sampling(remedy: str) -> Iterator[None]:
    """Whatever vLLM or its kernels raise inside is one error for the user."""
    try:
        yield
    except Exception as error:
        raise EngineError(f"vLLM failed while it sampled ({reason(error)}). {remedy}") from error


def quick_start() -> dict[str, Any]:
    """On a CPU, compiling takes longer than the work itself."""
    from vllm.platforms import current_platform

    return {"enforce_eager": True} if current_platform.is_cpu() else {}


def sample_from(llm: Any, context: int, prompt_ids: Sequence[list[int]], params: Params) -> list[Completion]:
    """Every request has a seed of its own, so what it draws does not depend on the others; their rounding may
    (docs/rollouts.md)."""
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids in prompt_ids],
        [sampling_params(params, place, context - len(ids)) for place, ids in enumerate(prompt_ids)],
        use_tqdm=False,
    )
    return [_completion(output.outputs[0]) for output in outputs]


def sampling_params(params: Params, place: int, room: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    given = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p or 0.0,
        "repetition_penalty": params.repetition_penalty,
        "max_tokens": min(params.max_new_tokens, room),
        "seed": None if params.draws is None else seed_of([params.draws[place]]),
        "logprobs": 0 if params.logprobs else None,  # 0: of the sampled token alone
        "detokenize": "stop" in params.options,  # text is made elsewhere
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }
    given |= params.options
    if isinstance(shape := given.get("structured_outputs"), dict):
        given["structured_outputs"] = StructuredOutputsParams(**shape)
    return SamplingParams(**given)


def _completion(output: Any) -> Completion:
    ids = list(output.token_ids)
    logprobs = output.logprobs and [at[token].logprob for at, token in zip(output.logprobs, ids, strict=True)]
    return Completion(ids, output.finish_reason == "length", logprobs)


def check() -> None:
    check_vllm("engine vllm", "use engine transformers")


def load(parts: Sequence[tuple[str, str | None]], dtype: str | None, *, batch_size: int, **options: Any) -> VLLMEngine:
    (place, revision), *_ = parts
    return VLLMEngine(place, revision, dtype, **options)


def check_vllm(asked: str, instead: str) -> None:
    """`asked` is how the user asked for vLLM, `instead` what to do without it."""
    if find_spec("vllm") is None:
        raise ValueError(
            f"{asked} needs vLLM, which is not installed. Install it (pip install 'trustmopd[vllm]'; "
            f"docs/rollouts.md says how), or {instead}."
        )
    found = vllm_version()
    if not SpecifierSet(VERSIONS).contains(found, prereleases=True):
        raise ValueError(
            f"{asked} needs vllm{VERSIONS}, the versions that TRL 1.16 works with; {found} is installed. Install one "
            f"of those (docs/rollouts.md says how), or {instead}."
        )


def vllm_version() -> str:
    """By the package's own record: importing vLLM takes ten seconds. The CPU build has another name."""
    return version(packages_distributions()["vllm"][0])


def code_for(architecture: str) -> tuple[bool, bool]:
    """Whether vLLM has its own code for an architecture, and whether it can run transformers' code of it: if that lets
    it put in its attention."""
    from vllm import ModelRegistry

    other = getattr(transformers, architecture, None)
    lends = other is None or other.is_backend_compatible()  # an architecture of the checkpoint's own is not judged
    return architecture in ModelRegistry.get_supported_archs(), lends


def check_architecture(architecture: str, name: str, model_impl: str) -> None:
    """For training: with `transformers` or `auto`, vLLM runs transformers' code too."""
    known, lends = code_for(architecture)
    if model_impl == "vllm" and not known:
        remedy = "vllm_model_impl = 'transformers' to let it run transformers' own, or " if lends else ""
        raise ValueError(
            f"vLLM {vllm_version()} has no code for {architecture}, the architecture of {name}. Set "
            f"{remedy}rollouts.engine = transformers."
        )
    if not lends and (model_impl == "transformers" or not known):
        raise ValueError(
            f"vllm_model_impl = {model_impl!r}: vLLM {vllm_version()} cannot run transformers' code of {architecture}, "
            f"the architecture of {name}. Set {'vllm_model_impl = vllm, or ' if known else ''}"
            "rollouts.engine = transformers."
        )


def can_sleep() -> bool:
    """Whether vLLM can hand its memory back on this machine."""
    from vllm.platforms import current_platform

    return current_platform.is_sleep_mode_available()


def check_port(port: int) -> None:
    """Of the group that carries the weights to a server: the first process will listen there."""
    if os.environ.get("RANK", "0") != "0":
        return
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError as error:
            raise ValueError(
                f"vllm_group_port = {port} is taken by another process ({error.strerror}). Choose another, or end that "
                "process."
            ) from error
