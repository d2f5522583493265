"""A teacher on Ray read by transformers and by vLLM: seconds and bytes a token, and the gap between the two in nats.

    python benchmarks/bench_teachers.py                           # SmolLM2-135M's shape, float32, on this CPU
    python benchmarks/bench_teachers.py --gpu                     # the 3B shape on one GPU: bfloat16, and FP8
    python benchmarks/bench_teachers.py --shape small --responses 4 --tokens 16 --repeats 1    # does it run at all

Every way has an actor of its own with weights of its own (random, by a seed). All start first, then take turns: one
teacher is asked about all responses, and for its logits at candidates. `read` are the actor's own seconds, `whole`
those until the logits are here; medians. On a GPU the actors share it.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from bench_step import SHAPES, Case, model
from record import append, known, number, versions
from rich.console import Console
from rich.table import Table

from trustmopd import Teacher
from trustmopd.policies import Rollouts, TeacherPool, build_pool, resolve
from trustmopd.policies.hosts.ray.actor import Terms
from trustmopd.policies.hosts.ray.policies import RayPolicies

RESULTS = Path(__file__).parent / "results" / "teachers.csv"
WAYS = {
    "transformers": {"engine": "transformers"},
    "vllm": {"engine": "vllm"},
    "vllm-fp8": {"engine": "vllm", "quantization": "fp8"},
}


def pool_of(
    ways: list[str], shape: str, dtype: torch.dtype, gpu: bool, folder: Path
) -> tuple[TeacherPool, RayPolicies]:
    teachers = {}
    for seed, way in enumerate(ways):
        built = model(Case("cpu", shape, "single", "resident", 0, 0, 0, 0), seed).to(dtype)
        built.save_pretrained(folder / way)
        gpus = round(0.9 / len(ways), 2) if gpu else 0
        teachers[way] = Teacher(str(folder / way), on="ray", gpus=gpus, **WAYS[way])
    terms = Terms("bench", None, 1800.0, dtype, None, False, None, gpu, None)
    elsewhere = RayPolicies(terms, lambda decide: decide())
    graph = resolve(teachers, None, "student", with_reference=False)
    return build_pool(graph, None, device=torch.device("cpu"), dtype=dtype, elsewhere=elsewhere), elsewhere


def main(
    shape: Annotated[str, typer.Option(help="A name of bench_step.SHAPES.")] = "",
    ways: Annotated[str, typer.Option(help="Of transformers, vllm, vllm-fp8.")] = "",
    responses: int = 0,
    prompt: int = 128,
    tokens: int = 0,
    candidates: int = 128,
    micro_batch: Annotated[int, typer.Option(help="Rows of a pass of transformers.")] = 4,
    repeats: int = 3,
    gpu: bool = False,
    output: Annotated[Path, typer.Option(help="CSV file to add rows to.")] = RESULTS,
) -> None:
    shape = known("shape", shape or ("smollm3-3b" if gpu else "smollm2-135m"), SHAPES)[0]
    names = known("way", ways or ("transformers,vllm,vllm-fp8" if gpu else "transformers,vllm"), WAYS)
    responses, tokens = responses or (64 if gpu else 8), tokens or (1024 if gpu else 256)
    dtype = torch.bfloat16 if gpu else torch.float32
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    vocab, generator = SHAPES[shape][-1], torch.Generator().manual_seed(0)
    ids = torch.randint(4, vocab, (responses, prompt + tokens), generator=generator)
    wanted = torch.randint(0, vocab, (responses * tokens, candidates), generator=generator)
    with tempfile.TemporaryDirectory() as folder:
        pool, elsewhere = pool_of(names, shape, dtype, gpu, Path(folder))
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    sent = {}
    rows = list(range(responses))
    for _ in range(1 + repeats):  # the first is a warm-up
        for name in names:
            mask = torch.ones_like(ids)
            elsewhere.take_usage()
            began = time.perf_counter()
            answers = pool.ask(Rollouts(ids, mask, mask[:, prompt:], micro_batch, rows={name: rows}))
            answers[name].logits_at(rows, wanted)
            whole = time.perf_counter() - began
            usage = elsewhere.take_usage()[name]
            seconds[name].append((usage.seconds, whole))
            sent[name] = usage.bytes
            answers.release()
    read = responses * (prompt + tokens)
    table, found = (
        Table("way", "tokens read a second", "read, ms a token", "whole, ms a token", "bytes a token", "gap"),
        [],
    )
    for name in names:
        reading, whole = (statistics.median(each) for each in zip(*seconds[name][1:], strict=True))
        row = {
            "device": "cuda" if gpu else "cpu",
            "shape": shape,
            "way": name,
            "dtype": str(dtype).removeprefix("torch."),
            "responses": responses,
            "prompt": prompt,
            "tokens": tokens,
            "read_per_second": number(read / reading, 1),
            "read_ms": number(1000 * reading / (responses * tokens), 4),
            "whole_ms": number(1000 * whole / (responses * tokens), 4),
            "bytes": number(sent[name] / (responses * tokens), 1),
            "gap": f"{elsewhere.gaps[name]:.2g}" if name in elsewhere.gaps else "",
        }
        found.append({**row, **versions("cuda" if gpu else "cpu")})
        table.add_row(
            name, *(str(row[column]) for column in ("read_per_second", "read_ms", "whole_ms", "bytes", "gap"))
        )
    pool.close()
    append(found, output)
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
