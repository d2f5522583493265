"""Whether vLLM can read for the frozen policies of a run, checked before any model is loaded."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from trustmopd.checkpoints.meta_model import local_adapter
from trustmopd.policies import PolicyGraph
from trustmopd.policies.graph import role_of
from trustmopd.policies.hosts.ray.vllm_pool import rank_of
from trustmopd.recipe.rollout_engines import VLLM
from trustmopd.recipe.teacher_source import RAY
from trustmopd.rollouts.vllm_engine import check_vllm, code_for, vllm_version
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.util.files import meant_here


def check_vllm_can_read(model: Any, graph: PolicyGraph, args: TrustMOPDConfig) -> None:
    """What vLLM is to read for frozen policies. `model` is the student; files of another machine are refused there."""
    away = [weights for weights in graph.at(RAY) if weights.engine == VLLM]
    if not away and (args.teacher_engine == VLLM or args.teacher_quantization):
        raise ValueError(
            f"teacher_engine = {args.teacher_engine!r}, teacher_quantization = {args.teacher_quantization!r}: there is "
            "no policy on Ray with engine vllm. Set teacher_placement = 'ray' and teacher_engine = 'vllm', or neither."
        )
    for weights in away:
        check_vllm(f"engine: vllm ({weights.role})", "leave engine out: transformers reads it")
        given = model if weights.checkpoint is None else weights.checkpoint.model
        _check_code(weights.role, given, args)
        for name, adapter in weights.adapters.items():
            if not meant_here(str(adapter.adapter)) or Path(str(adapter.adapter)).exists():
                rank_of(role_of(name), local_adapter(str(adapter.adapter), adapter.revision))


def _check_code(role: str, given: Any, args: TrustMOPDConfig) -> None:
    named = isinstance(given, (str, Path))
    if named and meant_here(str(given)) and not Path(given).exists():
        return
    config = AutoConfig.from_pretrained(given, trust_remote_code=args.trust_remote_code) if named else given.config
    architecture = (config.architectures or [type(given).__name__])[0]
    if not any(code_for(architecture)):
        raise ValueError(
            f"{role}: vLLM {vllm_version()} does not read {architecture} as transformers does, or at all "
            "(docs/remote.md lists what it reads). Leave engine out: transformers reads it."
        )
    if getattr(config, "quantization_config", None):
        raise ValueError(
            f"{role}: its files are quantised already, so there is nothing to compare vLLM with. Give the files in 16 "
            "bits, with quantization: fp8."
        )
