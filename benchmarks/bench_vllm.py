"""A whole step with vLLM's rollouts: time by phase, weight sync with its checks, and memory, at the paper's lengths.

    python benchmarks/bench_vllm.py                                       # trust and trl, sleeping; SmolLM3-3B's shape
    python benchmarks/bench_vllm.py --cases trust,trust-float32 --card 74.5     # as on an 80 GB card
    python benchmarks/bench_vllm.py --shape small --responses 8 --mean 12 --longest 32 --device cpu     # does it run

Random weights from shape and seed; the engine starts with others, and gets these by its first sync. Lengths are
log-normal (mean before the cut at `--longest`, sigma 0.8, seed 0), imposed by `max_tokens` and `ignore_eos`. `trust`
is ours with three resident teachers and the reference, in bfloat16 and under a token budget; `trust-awake` without
sleep mode; `trust-float32` with a float32 student and the frozen models offloaded; `uniform` has no reference; `trl` is
TRL's DistillationTrainer with one teacher, on the same prompts and lengths, asleep while it trains as `trust` is. No
calibration: mu is 1. The step that warms up has responses of an eighth of the length. `sync` is the push of the
weights, `exact` the comparison of tensors, `wake` and `sleep` what handing the memory over takes, all in ms; `skipped`
says whether a sync that is left out after a step at learning rate 1e-6 is found, `redrawn` the share of responses that
change if vLLM gets the same requests in two halves. Memory is what the GPU has in use at the end of a phase, vLLM's
and torch's cache included; torch keeps what it has once needed, so this is the phase's peak. `--card` fills the rest of
the GPU first: process and engine together have that many GiB, and a case that needs more runs out of memory. Each case
is a process of its own: vLLM does not give back all it takes.
"""

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from bench_step import NAMES, SHAPES, Case, WallClock, model, tokenizer
from datasets import Dataset
from record import append, known, number, versions
from rich.console import Console
from rich.table import Table
from transformers.trainer_callback import PrinterCallback
from trl import DistillationConfig, DistillationTrainer

RESULTS = Path(__file__).parent / "results" / "vllm.csv"
#: `redrawn` is measured where responses have at most this mean length: it samples two more times.
SHORT = 600
PHASES = ("rollout", "teachers", "reference", "student", "backward")
CASES = ("trust", "trust-awake", "trust-float32", "uniform", "trl")
GIB = 2**30


def lengths(count: int, mean: float, longest: int, sigma: float = 0.8) -> list[int]:
    drawn = np.random.default_rng(0).lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
    return np.clip(drawn, 1, longest).astype(int).tolist()


def impose(llm: Any, wanted: list[int]) -> None:
    """Each request's length, whatever the trainer asks for; an eighth of it in the first call."""
    generate = llm.generate
    calls = itertools.count()

    def generate_so_long(prompts: Any, sampling_params: Any, **options: Any) -> Any:
        given = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(prompts)
        params = [each.clone() for each in given]
        part = 1 if next(calls) else 8
        for each, length in zip(params, wanted, strict=False):
            each.max_tokens, each.ignore_eos = max(1, length // part), True
        return generate(prompts, params, **options)

    llm.generate = generate_so_long


def build(
    case: str,
    shape: str,
    responses: int,
    longest: int,
    share: float,
    budget: int,
    steps: int,
    device: str,
    folder: Path,
) -> Any:
    """The trainer of a case, and its `VLLMGeneration`."""
    import trl.generation.vllm_generation as trls

    from trustmopd import TrustMOPDConfig, TrustMOPDTrainer

    llm = trls.LLM
    trls.LLM = lambda **given: llm(**given | {"load_format": "dummy"})
    named = Case(device, shape, "", "", 0, 0, 0, 0)
    student = model(named, 0)
    if case == "trust-float32":
        student = student.float()
    student.config.save_pretrained(folder / "student")  # and no weights
    tokenizer(SHAPES[shape][-1]).save_pretrained(folder / "student")
    student.config._name_or_path = student.name_or_path = str(folder / "student")
    words = " ".join(f"t{4 + i}" for i in range(128 if device == "cuda" else 8))
    prompts = Dataset.from_dict({"prompt": [[{"role": "user", "content": words}]] * (responses * (steps + 1))})
    settings: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "use_vllm": True,
        "vllm_enable_sleep_mode": case != "trust-awake" and device == "cuda",
        "vllm_gpu_memory_utilization": share,
        "per_device_train_batch_size": 1 if device == "cuda" else 2,
        "max_completion_length": longest,
        "max_steps": steps + 1,
        "learning_rate": 1e-6,
        "warmup_steps": 0,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "bf16": device == "cuda",
        "use_cpu": device == "cpu",
        "gradient_checkpointing": True,
        "disable_tqdm": True,
    }
    settings["gradient_accumulation_steps"] = responses // settings["per_device_train_batch_size"]
    shared = {"train_dataset": prompts, "processing_class": tokenizer(SHAPES[shape][-1])}
    if case == "trl":
        args = DistillationConfig(beta=1.0, temperature=0.6, **settings, vllm_max_model_length=longest + len(words))
        made = DistillationTrainer(model=student, teacher_model=model(named, 1), args=args, **shared)
        engine = made.vllm_generation
        if device == "cpu":  # where TRL's own sync does not work
            runner = engine.llm.llm_engine.model_executor.driver_worker.model_runner
            engine.sync_weights = lambda: runner.reload_weights(weights_iterator=engine._iter_named_params())
    else:
        rule = {"allocation": "trust" if case.startswith("trust") else "uniform", "calibrated": False}
        rule |= {"max_tokens_per_micro_batch": budget or None}
        rule |= {"teacher_placement": "offload" if case == "trust-float32" else "resident"}
        args = TrustMOPDConfig(**settings, **rule, record_allocation_every=0)
        teachers = {name: model(named, seed) for seed, name in enumerate(NAMES, start=1)}
        made = TrustMOPDTrainer(student, teachers, args=args, **shared)
        engine = made.rollout_engine
    made.remove_callback(PrinterCallback)
    return made, engine


def measure(
    case: str,
    shape: str,
    responses: int,
    mean: float,
    longest: int,
    card: float,
    share: float,
    budget: int,
    steps: int,
    device: str,
) -> dict[str, float]:
    rest = torch.empty(0)
    if card:
        total = torch.cuda.mem_get_info()[1]
        # A limit of torch's own would not do: it counts what sleeps, and not all that vLLM takes.
        rest = torch.empty(total - int(card * GIB), dtype=torch.uint8, device="cuda")
        share *= card * GIB / total  # vLLM counts it of the whole GPU

    def now() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def in_use() -> float:
        if device != "cuda":
            return math.nan
        free, total = torch.cuda.mem_get_info()
        return (total - free - rest.nbytes) / GIB

    with tempfile.TemporaryDirectory() as folder:
        made, engine = build(case, shape, responses, longest, share, budget, steps, device, Path(folder))
        wanted = lengths(responses, mean, longest)
        impose(engine.llm, wanted)
        took, memory = defaultdict(list), defaultdict(lambda: math.nan)

        def timed(owner: Any, name: str, label: str) -> None:
            call = getattr(owner, name)

            def run(*args: Any, **options: Any) -> Any:
                began = now()
                result = call(*args, **options)
                took[label].append(now() - began)
                memory[label] = np.fmax(memory[label], in_use())
                return result

            setattr(owner, name, run)

        timed(engine.llm, "generate", "sampling")
        timed(made, "training_step", "training")
        if case == "trl":
            timed(engine, "sync_weights", "sync")
        else:
            timed(engine, "push", "sync")
            timed(engine, "check_weights", "exact")
        timed(engine.llm, "wake_up", "wake")
        timed(engine.llm, "sleep", "sleep")
        clock = WallClock(device)
        made.add_callback(clock)
        made.train()
        found = {"step": statistics.median(clock.seconds[1:]), "sampling": statistics.median(took["sampling"][1:])}
        found |= {"sync_ms": 1000 * statistics.median(took["sync"][1:])}
        for name in ("exact", "wake", "sleep"):
            found[f"{name}_ms"] = 1000 * statistics.median(took[name][1:]) if took[name] else math.nan
        found |= {f"{name}_gib": float(memory[name]) for name in ("sampling", "training")}
        found["tokens_per_second"] = sum(wanted) / found["step"]
        path = Path(folder) / "run" / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        lines = [line for line in lines if "loss" in line][1:]
        for phase in PHASES:
            values = [line.get(f"seconds/{phase}", 0.0) for line in lines]
            found[phase] = statistics.median(values) if values else math.nan
        found["gap_mean"] = lines[-1]["rollout/logprob_gap_mean"] if lines else math.nan
        found["gap_max"] = lines[-1]["rollout/logprob_gap_max"] if lines else math.nan
        found["skipped_found"] = math.nan if case == "trl" else float(_finds_a_skipped_sync(made, engine))
        found["redrawn"] = math.nan if case == "trl" or mean > SHORT else _redrawn(engine, responses, longest)
    return found


def _finds_a_skipped_sync(made: Any, engine: Any) -> bool:
    """After the last optimizer step the engine still has the weights of the step before."""
    from trustmopd.rollouts.weights import StaleWeights

    engine.push = lambda: None
    try:
        if engine.enable_sleep_mode:  # asleep its weights are gone: put them in, then change the student as a step does
            del engine.push
            engine.sync_weights()
            engine.push = lambda: None
            with torch.no_grad():
                for parameter in made.model.parameters():
                    parameter += 1e-6 * torch.randn_like(parameter).sign()
        engine.check_weights()
    except StaleWeights:
        return True
    return False


def _redrawn(engine: Any, responses: int, longest: int) -> float:
    """The share of responses that differ between one call for all requests and two calls for half of them each."""
    from trustmopd.rollouts import Params

    del engine.push
    if engine.enable_sleep_mode:  # all of it asleep, as between two batches
        engine.llm.wake_up(tags=["kv_cache"])
        engine.llm.sleep(level=2)
    prompts = [[4 + row, *range(5, 40)] for row in range(responses)]
    draws = [str(row) for row in range(responses)]

    def sample(rows: slice) -> list[list[int]]:
        params = Params(max_new_tokens=longest, temperature=0.6, draws=draws[rows])
        return [made.ids for made in engine.sample(prompts[rows], params)]

    half = responses // 2
    pairs = zip(sample(slice(None)), sample(slice(half)) + sample(slice(half, None)), strict=True)
    return statistics.mean(at_once[: len(halved)] != halved[: len(at_once)] for at_once, halved in pairs)


def main(
    cases: Annotated[str, typer.Option(help=f"What to compare: {', '.join(CASES)}.")] = "trust,trl",
    shape: Annotated[str, typer.Option(help=f"Model shape: {', '.join(SHAPES)}.")] = "smollm3-3b",
    responses: Annotated[int, typer.Option(help="Responses a step.")] = 64,
    mean: Annotated[float, typer.Option(help="Mean length before the cut, in tokens.")] = 2500,
    longest: Annotated[int, typer.Option(help="Longest response.")] = 8192,
    card: Annotated[
        float, typer.Option(help="GiB of the GPU for process and engine together; 0: all. An 80 GB card has 74.5.")
    ] = 0,
    share: Annotated[float, typer.Option(help="vllm_gpu_memory_utilization, of `--card`.")] = 0.3,
    budget: Annotated[int, typer.Option(help="max_tokens_per_micro_batch of ours; 0: none.")] = 16384,
    steps: Annotated[int, typer.Option(help="Steps that count, after one that does not.")] = 2,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    output: Annotated[Path, typer.Option(help="CSV file to append to.", show_default="results/vllm.csv")] = RESULTS,
    one: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Whole training steps with rollouts by vLLM, beside TRL's own trainer."""
    chosen = known("case", cases, CASES)
    known("shape", shape, SHAPES)
    settings = (shape, responses, mean, longest, card, share, budget, steps, device)
    if one:
        print("\nFOUND " + json.dumps(measure(chosen[0], *settings)), flush=True)
        os._exit(0)  # vLLM's threads may not end by themselves
    table = Table("case", "step s", "tokens/s", "sampling s", "sync ms", "exact ms", "sampling GiB", "training GiB")
    for case in chosen:
        names = (
            "--shape",
            "--responses",
            "--mean",
            "--longest",
            "--card",
            "--share",
            "--budget",
            "--steps",
            "--device",
        )
        words = [word for pair in zip(names, map(str, settings), strict=True) for word in pair]
        done = subprocess.run(
            [sys.executable, __file__, "--one", "--cases", case, *words], stdout=subprocess.PIPE, text=True
        )
        told = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
        if not told:
            raise SystemExit(f"{case} did not end well (status {done.returncode}).")
        found = json.loads(told[0].removeprefix("FOUND "))
        shown = ("step", "tokens_per_second", "sampling", "sync_ms", "exact_ms", "sampling_gib", "training_gib")
        table.add_row(case, *(number(found[name], 2) for name in shown))
        asked = dict(zip((name[2:] for name in names), settings, strict=True))
        row = {"case": case, **asked, **{name: number(value, 4) for name, value in found.items()}, **versions(device)}
        append([row], output)
        print(case, found, flush=True)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
