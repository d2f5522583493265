"""Policies whose hidden states vLLM computes, in the process of an actor. The output head is ours, so answers are exact
at the student's own candidates.

vLLM runs as it does for embeddings: without a head, and it hands out the state of every token after the final norm.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from peft import PeftConfig, PeftModel
from torch import Tensor

from trustmopd.checkpoints.meta_model import local_adapter
from trustmopd.heads import Head
from trustmopd.policies.answers import Answers, LocalAnswer, Rollouts
from trustmopd.policies.graph import Weights, role_of
from trustmopd.policies.hosts.ray.vllm_probe import Probe
from trustmopd.policies.load import Loader, load_weights
from trustmopd.policies.pool import LocalMember, Member
from trustmopd.policies.reading import Sequences
from trustmopd.util.messages import first_line

#: vLLM's share of an actor's part of a GPU: our head and the logits of candidates are beside it.
SHARE = 0.85
#: For vLLM in this process: it listens on no other address, and reports to nobody. Actors share the cores.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
#: Ranks for which vLLM makes room, and what of an adapter it would leave out or refuse.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
UNREAD = ("use_dora", "modules_to_save", "alpha_pattern", "rank_pattern", "target_parameters", "layer_replication")


class VLLMPool:
    """Asked as a `TeacherPool`. `gaps` are the nats by which the policies differ from transformers' forward."""

    def __init__(
        self,
        members: Mapping[str, Member],
        engine: Any,
        head: Head,
        adapters: Mapping[str, Path],
        vocab_size: int | None,
    ):
        from vllm.lora.request import LoRARequest

        self.members = dict(members)
        self.head = head
        self.gaps: dict[str, float] = {}
        self._engine = engine
        self._adapters = {name: LoRARequest(name, place, str(adapters[name])) for place, name in enumerate(adapters, 1)}
        self._vocab_size = vocab_size

    def ask(self, rollouts: Rollouts) -> Answers:
        """vLLM hands the states over in host memory. There they stay until the answer is released."""
        width, dtype = self.head.weight.shape[1], self.head.weight.dtype
        answers = Answers()
        for name in self.members:
            own = rollouts.read_by(name)
            read = Sequences.padded(own.input_ids.cpu(), own.attention_mask.cpu(), own.response_mask.cpu())
            assert read.attention_mask is not None
            attended = read.attention_mask != 0
            states = {row: torch.empty(0, width, dtype=dtype) for row in rollouts.rows_of(name)}
            wanted = [row for row in states if read.predicts[row].any()]
            self._check_room(name, int(read.predicts[wanted].sum()))
            for row, found in self._states(name, {row: read.input_ids[row][attended[row]].tolist() for row in wanted}):
                states[row] = found[read.predicts[row][attended[row]]].to(dtype)
            answers[name] = LocalAnswer(name, self.head, states, self._vocab_size, own.swap)
        return answers

    def _states(self, name: str, sequences: Mapping[int, list[int]]) -> Iterator[tuple[int, Tensor]]:
        """Of every token of each sequence, in the order in which vLLM ends them."""
        from vllm import PoolingParams

        for row, ids in sequences.items():
            params = PoolingParams(task="token_embed", use_activation=False)
            self._engine.add_request(str(row), {"prompt_token_ids": ids}, params, lora_request=self._adapters.get(name))
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                yield int(output.request_id), output.outputs.data

    def _check_room(self, name: str, tokens: int) -> None:
        """Without it the system would kill an actor, and perhaps not this one."""
        needed = tokens * self.head.weight.shape[1] * self.head.weight.itemsize
        if needed > (free := psutil.virtual_memory().available):
            raise ValueError(
                f"{role_of(name)}: the hidden states of {tokens} response tokens take {needed / 2**30:.1f} GiB of host "
                f"memory, and {free / 2**30:.1f} are free. Lower global_batch_size or max_completion_length, or add "
                "replicas on other nodes."
            )


def load_vllm(weights: Weights, loader: Loader, device: torch.device, longest: int, vocab_size: int | None) -> VLLMPool:
    """The policies of one set of weights. transformers loads them first, in host memory: fingerprints and head are its
    own, and so is the forward that vLLM is compared with. No sequence has more than `longest` tokens."""
    folders = {name: local_adapter(str(given.adapter), given.revision) for name, given in weights.adapters.items()}
    rank = max((rank_of(role_of(name), folder) for name, folder in folders.items()), default=0)
    loaded = load_weights(weights, loader, torch.device("cpu"))
    head = next(iter(loaded.values())).head
    probe = Probe.of(loaded, vocab_size)
    with _files(weights, loaded) as folder:
        engine = _start(weights, loader, folder, head.weight.dtype, max(longest, probe.tokens), rank)
    bias = None if head.bias is None else head.bias.to(device)
    members = {name: Member(name, _origin(member, weights)) for name, member in loaded.items()}
    pool = VLLMPool(members, engine, replace(head, weight=head.weight.to(device), bias=bias), folders, vocab_size)
    pool.gaps = probe.gaps(pool.ask, weights.quantization)
    return pool


def rank_of(role: str, adapter: Path) -> int:
    """The rank for which vLLM has to make room. Refuses an adapter of which it would read a part alone."""
    config = PeftConfig.from_pretrained(adapter)
    unread = [name for name in UNREAD if getattr(config, name, None)]
    unread += ["bias"] if getattr(config, "bias", "none") != "none" else []
    unread += [] if config.peft_type == "LORA" else ["peft_type"]
    if unread or config.r > RANKS[-1]:
        setting = unread[0] if unread else "r"
        raise ValueError(
            f"{role}: vLLM cannot read the adapter {adapter} as it is ({setting} = {getattr(config, setting)}). Leave "
            "engine out, or merge it into full weights: trustmopd merge ADAPTER --out FOLDER."
        )
    return next(rank for rank in RANKS if rank >= config.r)


def _origin(member: LocalMember, weights: Weights) -> Any:
    """Quantised weights are another policy."""
    mark = member.origin.fingerprint
    return replace(member.origin, fingerprint=f"{mark}:{weights.quantization}" if weights.quantization else mark)


@contextmanager
def _files(weights: Weights, loaded: Mapping[str, LocalMember]) -> Iterator[str]:
    """Where vLLM reads the weights: in their own folder or, if there is none, in one that is there for as long."""
    given, model = weights.checkpoint, next(iter(loaded.values())).host.model
    assert given is not None
    if isinstance(given.model, (str, Path)) and given.adapter is None:
        yield str(given.model)
        return
    if weights.bare is not None and loaded[weights.bare].adapter is not None:
        raise ValueError(
            f"{weights.role} is a model in memory with an adapter, which vLLM cannot read. Merge it "
            "(model.merge_and_unload()), or leave engine out."
        )
    with tempfile.TemporaryDirectory() as folder:
        (model.unload() if isinstance(model, PeftModel) else model).save_pretrained(folder)
        yield folder


def _start(weights: Weights, loader: Loader, folder: str, dtype: torch.dtype, longest: int, rank: int) -> Any:
    """vLLM's engine in this process, over as many GPUs as this actor has."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import EngineArgs, LLMEngine
    from vllm.config import PoolerConfig
    from vllm.platforms import current_platform

    gpus, given = weights.gpus or 0.0, weights.checkpoint
    lora = {"enable_lora": True, "max_lora_rank": rank, "max_loras": len(weights.adapters)} if rank else {}
    try:
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=folder,
                revision=given.revision if given is not None and folder == str(given.model) else None,
                skip_tokenizer_init=True,
                trust_remote_code=loader.trust_remote_code,
                runner="pooling",
                convert="embed",
                pooler_config=PoolerConfig(task="token_embed", use_activation=False),
                dtype=str(dtype).removeprefix("torch."),
                quantization=weights.quantization,
                max_model_len=longest,
                enable_prefix_caching=False,  # the states of cached tokens would be missing
                tensor_parallel_size=max(1, int(gpus)),
                distributed_executor_backend="mp" if gpus > 1 else "uni",
                gpu_memory_utilization=SHARE * min(1.0, gpus or 1.0),
                enforce_eager=current_platform.is_cpu(),
                disable_log_stats=True,
                **lora,
            )
        )
    except Exception as error:  # vLLM passes on any error of its many parts
        raise ValueError(
            f"{weights.role}: vLLM cannot run {given.source if given else folder!r} ({first_line(error)}). Its log is "
            "among Ray's (session_latest/logs). Leave engine out, and transformers reads it."
        ) from error
    if (found := engine.vllm_config.model_config.dtype) != dtype:
        raise ValueError(f"{weights.role}: vLLM computes in {found} instead of {dtype}. Set its dtype to {found}.")
    return engine
