"""vLLM on a checkpoint of its own: hundreds of requests at once, which it schedules itself."""

from collections.abc import Sequence
from typing import Any

from safetensors import SafetensorError

from trustmopd.engines import Completion, EngineError, Params, loading, reason, seed_of
from trustmopd.engines.vllm_package import check_vllm, code_for, vllm_version

TAKES_ADAPTERS = False


class VLLMEngine:
    """`options` go to `vllm.LLM`, such as tensor_parallel_size."""

    batch = 512  # what an interruption can cost

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

    def sample(self, prompt_ids: Sequence[list[int]], params: Params) -> list[Completion]:
        return sample_from(self.llm, self.context, prompt_ids, params)


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
    from vllm.sampling_params import StructuredOutputsParams

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
