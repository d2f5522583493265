"""What samples a student's rollouts, with its parameters: `rollouts: {engine: vllm, gpu_memory_utilization: 0.4}`.

A new engine is a class here, one with `sample` in `rollouts/`, and the function that makes it for a trainer, in
`training/rollout_engine.py`.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trustmopd.recipe.sections import Section, Text


class Rollouts(Section):
    """`engine` says which; the other fields are its parameters. `beside`: it samples beside the student, whose weights
    it is sent, and gives log-probabilities of its own."""

    beside: ClassVar[bool] = False
    engine: str


class TransformersRollouts(Rollouts):
    engine: Literal["transformers"] = "transformers"
    cache_implementation: Annotated[Text | None, Field(description="static is compiled; null: the default.")] = None


class VLLMRollouts(Rollouts):
    """TRL's `vllm_*` fields without the prefix, with TRL's defaults."""

    beside = True
    engine: Literal["vllm"] = "vllm"
    mode: Annotated[Literal["colocate", "server"], Field(description="Choose colocate or server.")] = "colocate"
    model_impl: Annotated[Text, Field(description="Choose vllm, transformers or auto.")] = "vllm"
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1, description="vLLM's share of the GPU.")] = 0.3
    max_model_length: Annotated[int | None, Field(ge=1, description="Longest prompt and response, in tokens.")] = None
    tensor_parallel_size: Annotated[int, Field(ge=1, description="Processes that share one engine.")] = 1
    enable_sleep_mode: Annotated[bool, Field(description="Write true to free its memory while training.")] = False
    structured_outputs_regex: Annotated[Text | None, Field(description="Give a regular expression, or null.")] = None
    server_base_url: Annotated[Text | None, Field(description="Such as http://localhost:8000.")] = None
    server_host: Annotated[Text, Field(description="Of a server without a base URL.")] = "0.0.0.0"
    server_port: Annotated[int, Field(ge=1, le=65535, description="Of a server without a base URL.")] = 8000
    server_timeout: Annotated[float, Field(gt=0, description="Seconds until the server has started.")] = 240.0
    group_port: Annotated[int, Field(ge=1, le=65535, description="For sending weights.")] = 51216
    timeout: Annotated[float, Field(gt=0, description="Most seconds for one batch; then the run stops.")] = 3600.0
    logprob_gap_limit: Annotated[float, Field(gt=0, description="In nats; beyond it the run stops.")] = 0.3


TRANSFORMERS, VLLM = "transformers", "vllm"
ROLLOUTS = {kind.model_fields["engine"].default: kind for kind in (TransformersRollouts, VLLMRollouts)}


def config_field(engine: str, parameter: str) -> str:
    """The field of a configuration that has the same parameter; TRL's own names."""
    if parameter in ("cache_implementation", "logprob_gap_limit"):
        return parameter
    return "rollout_timeout" if parameter == "timeout" else f"{engine}_{parameter}"
