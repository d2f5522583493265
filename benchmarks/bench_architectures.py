"""Which architectures vLLM reads for us, and how exactly: a tiny random model of each, in float32, on this CPU.

    python benchmarks/bench_architectures.py                          # all; half an hour on two busy cores
    python benchmarks/bench_architectures.py --architectures llama,qwen3

`code` is whose code vLLM runs: its own, or transformers'. `gap` is what `teacher_gap/<name>` would be, in nats;
`refused` is the error instead. Each has a process of its own, forked after vLLM is imported, and one engine at a time.
"""

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from record import append, known, versions
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM

from trustmopd.policies import Teacher, resolve
from trustmopd.policies.hosts.ray.vllm_pool import load_vllm
from trustmopd.policies.load import Loader

RESULTS = Path(__file__).parent / "results" / "architectures.csv"
VOCAB = 160
#: Seconds of one architecture; then it is "died".
LIMIT = 600
#: Under the names that most configurations have. vLLM's CPU kernels want heads of 32.
USUAL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
#: Configurations with other names for these.
OWN_NAMES = ("gpt2", "bloom", "falcon", "mpt")
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
GPT2 = {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256}
MLA = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
ROUTED = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
ROUTED |= {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
#: By the name of the configuration, with what it needs beside the usual.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("llama", "mistral", "qwen3", "smollm3", "phi3", "granite", "gemma2")},
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"]},
    **{name: {} for name in ("cohere", "cohere2", "olmo2", "olmo3", "glm4", "starcoder2", "stablelm")},
    "gpt_neox": {},
    "phi": {"num_key_value_heads": 4},
    "gpt2": GPT2,
    "opt": {"ffn_dim": 256, "word_embed_proj_dim": 128},
    "bloom": {"n_layer": 2, "n_head": 4},
    "falcon": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_kv_heads": 2}
    | {"new_decoder_architecture": True},
    "mpt": {"d_model": 128, "n_heads": 4, "n_layers": 2, "max_seq_len": 256},
    **{name: {} for name in ("exaone4", "hunyuan_v1_dense", "ernie4_5", "seed_oss")},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "mamba": {"state_size": 16},
    "qwen3_next": {**EXPERTS, "shared_expert_intermediate_size": 128, "linear_num_value_heads": 4}
    | {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": EXPERTS,
    "olmoe": EXPERTS,
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {**MLA, **ROUTED, "num_key_value_heads": 4},
    "glm4_moe": {**ROUTED, "use_qk_norm": True},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": {"num_local_experts": 2, "intermediate_size_mlp": 256, "attention_chunk_size": 128},
}


def model(name: str) -> Any:
    torch.manual_seed(0)
    special = ARCHITECTURES[name]
    config = AutoConfig.for_model(name, **({} if name in OWN_NAMES else USUAL) | special)
    for field in ("vocab_size", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, field, USUAL[field])
    if name == "bloom":
        config.hidden_size = USUAL["hidden_size"]
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def measure(name: str) -> dict[str, object]:
    built = model(name)
    architecture = type(built).__name__
    row = {"architecture": architecture, "code": ""}
    with tempfile.TemporaryDirectory() as folder:
        built.save_pretrained(folder)
        graph = resolve({"it": Teacher(folder, on="ray", engine="vllm")}, None, "student", with_reference=False)
        try:
            pool = load_vllm(graph.weights[0], Loader(torch.float32), torch.device("cpu"), 0, VOCAB)
        except Exception as error:  # whatever it is, it is what is measured
            return {**row, "gap": "", "refused": " ".join(str(error).split())[:300] or type(error).__name__}
    borrowed = pool._engine.vllm_config.model_config.using_transformers_backend()
    return {**row, "code": "transformers" if borrowed else "vLLM", "gap": f"{pool.gaps['it']:.2g}", "refused": ""}


def measured(name: str) -> dict[str, object]:
    """In a process of its own, which shares what is imported already."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(LIMIT)
        status = 1
        try:
            os.write(writing, json.dumps(measure(name)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return {"model_type": name} | (
        json.loads(told) if told else {"architecture": "", "code": "", "gap": "", "refused": "died"}
    )


def main(
    architectures: Annotated[str, typer.Option(help="Names of configurations.")] = ",".join(ARCHITECTURES),
    output: Annotated[Path, typer.Option(help="CSV file to add rows to.")] = RESULTS,
) -> None:
    torch.set_num_threads(1)
    import vllm.v1.worker.cpu_worker  # noqa: F401  before the forks: importing it takes longer than most engines

    table = Table("model type", "architecture", "code", "gap", "refused")
    for name in known("architecture", architectures, ARCHITECTURES):
        row = measured(name)
        append([{**row, **versions("cpu")}], output)
        table.add_row(*map(str, row.values()))
        print(row, flush=True)
    Console(width=200).print(table)


if __name__ == "__main__":
    typer.run(main)
