r"""Tokens a second of sampling: transformers by cache, which says what `cache_implementation` should be, and vLLM.

    python benchmarks/bench_rollouts.py                                   # the SmolLM2-135M and SmolLM3-3B shapes
    VLLM_ENABLE_V1_MULTIPROCESSING=0 python benchmarks/bench_rollouts.py --shapes smollm3-3b --engines default,vllm \
        --tokens 4096
    python benchmarks/bench_rollouts.py --shapes tiny --batch 4 --tokens 16 --device cpu
    python benchmarks/bench_rollouts.py --shapes smollm2-135m --engines default,default-on-cpu --tokens 32 --device cpu
    python benchmarks/bench_rollouts.py --shapes smollm2-135m --engines ending-on-cpu,rounds-on-cpu --tokens 112 \
        --batch 32 --device cpu

Random weights, sampling at temperature 0.6. `first` is the first call, with compilation where there is any; `other
width` is a later call with longer prompts, as the next batch of training has; `prefill` is a call for one token: what
reading the prompts takes. `decoded/s` leaves it out, `tokens/s` does not. A static cache has room for both widths, and
for as many tokens as `--room` says: that is what a long `max_completion_length` costs.
`vllm` gives each token's log-probability and has a seed for each request, as training asks; `vllm-plain` gives tokens
alone, as transformers does. `default-filled` begins with a default cache that is full of random prompts, unread: how
many responses it holds at a length, and its `decoded/s` there, without the minutes that lead up to it.
`default-on-cpu` is what trustmopd replaces on a CPU. No response ends early, except in `ending-on-cpu`: there they end
at a quarter of `--tokens` on average, and in `rounds-on-cpu` those that have ended leave the batch. What follows an end
does not count. A batch that does not fit has an empty row.
"""

import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from bench_step import SHAPES, Case, model, tokenizer
from record import append, known, number, versions
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, PreTrainedModel

from trustmopd.rollouts.cpu_sampling import faster_on_cpu, generate_in_rounds

RESULTS = Path(__file__).parent / "results" / "rollouts.csv"
WIDER = 24
MEASURED = ("tokens_per_second", "decoded_per_second", "first", "later", "prefill", "other_width", "peak_gib")


def config(tokens: int, **settings: object) -> GenerationConfig:
    sampling = {"do_sample": True, "temperature": 0.6, "top_k": 0, "pad_token_id": 0, "eos_token_id": None}
    return GenerationConfig(max_new_tokens=tokens, **{**sampling, **settings})


def with_cache(cache: Cache | None = None, **settings: object) -> Callable[[PreTrainedModel, Tensor, int, int], int]:
    def sample(policy: PreTrainedModel, prompts: Tensor, tokens: int, room: int) -> int:
        policy.generation_config.eos_token_id = None
        policy._previous_max_cache_length = room  # as transformers itself remembers it from a longer call
        mask = torch.ones_like(prompts)
        made = policy.generate(
            prompts, attention_mask=mask, past_key_values=cache, generation_config=config(tokens, **settings)
        )
        return made.numel() - prompts.numel()

    return sample


def filled(policy: PreTrainedModel, prompts: Tensor, tokens: int, room: int) -> int:
    cache = DynamicCache()
    shape = (len(prompts), policy.config.num_key_value_heads, prompts.shape[1] - 1, policy.config.head_dim)
    for layer in range(policy.config.num_hidden_layers):
        cache.update(*(torch.randn(shape, device=policy.device, dtype=policy.dtype) for _ in range(2)), layer)
    return with_cache(cache, disable_compile=True)(policy, prompts, tokens, room)


def on_cpu(policy: PreTrainedModel, prompts: Tensor, tokens: int, room: int) -> int:
    with faster_on_cpu(policy):
        return ENGINES["default"](policy, prompts, tokens, room)


def ending_on_cpu(policy: PreTrainedModel, prompts: Tensor, tokens: int, room: int, rounds: bool = False) -> int:
    """Random weights draw any token about as often, so a set of end tokens is drawn with a chance of 4 / `tokens`."""
    ends = list(range(1, min(policy.config.vocab_size, 4 * policy.config.vocab_size // tokens)))
    generate = partial(generate_in_rounds, policy) if rounds else policy.generate
    with faster_on_cpu(policy):
        asked = config(tokens, eos_token_id=ends, disable_compile=True)
        made = generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), generation_config=asked)
    return int((made[:, prompts.shape[1] :] != asked.pad_token_id).sum())


def continuous(policy: PreTrainedModel, prompts: Tensor, tokens: int, room: int) -> int:
    made = policy.generate_batch(inputs=prompts.tolist(), generation_config=config(tokens), progress_bar=False)
    return sum(len(output.generated_tokens) for output in made.values())


STARTED: dict[int, Any] = {}


def vllm(policy: PreTrainedModel, prompts: Tensor, tokens: int, room: int, share: float = 0.9, **asked: object) -> int:
    """Started once a model, with weights of its own: they cost the same. Peak memory is not vLLM's."""
    from vllm import LLM, SamplingParams

    if id(policy) not in STARTED:
        with tempfile.TemporaryDirectory() as folder:
            policy.config.save_pretrained(folder)
            tokenizer(policy.config.vocab_size).save_pretrained(folder)
            llm = LLM(
                model=folder,
                load_format="dummy",
                max_model_len=room,
                max_num_seqs=512,
                gpu_memory_utilization=share,
                logprobs_mode="raw_logprobs",
            )
        core = llm.llm_engine.model_executor.driver_worker.model_runner
        print("vLLM runs it as", type(core.get_model()).__module__, type(core.get_model()).__name__, flush=True)
        STARTED[id(policy)] = llm
    params = SamplingParams(temperature=0.6, max_tokens=tokens, ignore_eos=True, detokenize=False, **asked)
    made = STARTED[id(policy)].generate([{"prompt_token_ids": ids} for ids in prompts.tolist()], params, use_tqdm=False)
    return sum(len(output.outputs[0].token_ids) for output in made)


ENGINES = {
    "default": with_cache(disable_compile=True),
    "default-filled": filled,
    "default-on-cpu": on_cpu,
    "ending-on-cpu": ending_on_cpu,
    "rounds-on-cpu": partial(ending_on_cpu, rounds=True),
    "static": with_cache(cache_implementation="static", disable_compile=True),
    "static-compiled": with_cache(cache_implementation="static"),
    "continuous-batching": continuous,
    "vllm": partial(vllm, logprobs=0, seed=0),
    "vllm-plain": vllm,
}


TRANSFORMERS = "default,static,static-compiled,continuous-batching"


def main(
    shapes: Annotated[str, typer.Option(help="Model shapes of bench_step.py.")] = "smollm2-135m,smollm3-3b",
    engines: Annotated[str, typer.Option(help=f"What to compare: {', '.join(ENGINES)}.")] = TRANSFORMERS,
    batch: Annotated[str, typer.Option(help="Responses sampled together, one number or several.")] = "64",
    prompt: Annotated[int, typer.Option(help="Prompt tokens.")] = 128,
    tokens: Annotated[int, typer.Option(help="New tokens of each response.")] = 256,
    room: Annotated[int, typer.Option(help="Least size of a static cache, in tokens.")] = 0,
    share: Annotated[float, typer.Option(help="vLLM's part of the GPU's memory; less beside another engine.")] = 0.9,
    once: Annotated[bool, typer.Option(help="One call, after one of 8 tokens: where a call takes minutes.")] = False,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    output: Annotated[Path, typer.Option(help="CSV file to append to.", show_default="results/rollouts.csv")] = RESULTS,
) -> None:
    """Compare the ways in which a batch of responses can be sampled."""
    table = Table(
        "shape",
        "engine",
        "batch",
        "tokens/s",
        "decoded/s",
        "first s",
        "later s",
        "prefill s",
        "other width s",
        "peak GiB",
    )
    chosen = known("engine", engines, ENGINES)
    for shape in known("shape", shapes, SHAPES):
        policy = model(Case(device, shape, "", "", 0, 0, 0, 0), 0).eval().requires_grad_(False)
        room = max(room, prompt + WIDER + tokens)
        for engine, count in product(chosen, map(int, batch.split(","))):
            options = {"share": share} if "vllm" in engine else {}
            row = measure(
                policy, engine, partial(ENGINES[engine], **options), count, prompt, tokens, room, device, once
            )
            table.add_row(shape, engine, str(count), *(number(value, 2) for value in row.values()))
            print(shape, engine, count, row, flush=True)
            case = {"device": device, "shape": shape, "engine": engine, "batch": count, "prompt": prompt}
            case |= {"tokens": tokens, "room": room, **{k: number(v, 2) for k, v in row.items()}, **versions(device)}
            append([case], output)
        del policy
        STARTED.clear()  # an id may come back
    Console().print(table)


def measure(
    policy: PreTrainedModel,
    engine: str,
    sample: Callable[[PreTrainedModel, Tensor, int, int], int],
    batch: int,
    prompt: int,
    tokens: int,
    room: int,
    device: str,
    once: bool,
) -> dict[str, float]:
    def seconds(width: int, tokens: int = tokens) -> tuple[float, int]:
        torch.manual_seed(0)
        prompts = torch.randint(4, policy.config.vocab_size, (batch, width), device=device)
        began = time.perf_counter()
        with torch.no_grad():
            count = sample(policy, prompts, tokens, room)
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began, count

    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        first, _ = seconds(prompt, 8 if once else tokens)
        (later, count), (prefill, firsts) = seconds(prompt), seconds(prompt, 1)
        other, _ = (math.nan, 0) if once else seconds(prompt + WIDER)
    except Exception as error:  # a way that does not work here is a finding, not a failure of the others
        print(f"{engine}: {type(error).__name__}: {str(error)[:300]}")
        return dict.fromkeys(MEASURED, float("nan"))
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
    values = (count / later, (count - firsts) / (later - prefill), first, later, prefill, other, peak)
    return dict(zip(MEASURED, values, strict=True))


if __name__ == "__main__":
    typer.run(main)
