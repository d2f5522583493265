"""Time and memory of one training step from hidden states: loss and backward with K teachers and a reference.

    python benchmarks/bench_heads.py                         # naive against chunked, float32, here
    python benchmarks/bench_heads.py --sweep                 # how memory grows with tokens and vocabulary
    python benchmarks/bench_heads.py --device cuda --dtype bfloat16 --hidden 2048 --vocab 128256 --tokens 8192 \\
        --implementations naive,chunked,fused,trl,liger,gemm

`naive` forms the logits of every model over the whole vocabulary and lets autograd keep them; `chunked` and `fused` are
implementations of `trustmopd.heads`. These compute one loss through the method's functions, and must agree on it. `trl`
and `liger` (peers.py) take the reverse KL over the whole vocabulary, teacher by teacher; `gemm` is the student's output
projection alone. Times are medians of alternating runs in one process, so that a busy machine slows all; memory is
measured apart, one process a case on a CPU.
"""

import itertools
import math
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from peers import PEERS
from record import append, known, number, versions
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from trustmopd.heads import Head, trust_objective, use_implementation
from trustmopd.method import (
    CandidateState,
    mean_of_response_means,
    renormalise,
    top_candidates,
)

RESULTS = Path(__file__).parent / "results" / "heads.csv"
GIB = 2**30
OURS = ("naive", "chunked", "fused")


@dataclass(frozen=True)
class Case:
    """One step. The fields are columns of the results file, in its order."""

    device: str
    implementation: str
    teachers: int
    tokens: int
    hidden: int
    vocab: int
    candidates: int
    dtype: str


@dataclass(frozen=True)
class Policy:
    """The last hidden states of one model on one response, and its output weight."""

    hidden: Tensor
    weight: Tensor


def policies(case: Case) -> list[Policy]:
    """The student, which is trained; the reference; the teachers. All relatives, as specialists of one base are."""
    generator = torch.Generator(case.device).manual_seed(0)
    dtype = getattr(torch, case.dtype)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        drawn = torch.empty(shape, device=case.device, dtype=dtype)
        return drawn.normal_(std=scale, generator=generator)

    hidden, weight = normal(case.tokens, case.hidden), normal(case.vocab, case.hidden, scale=case.hidden**-0.5)
    student = Policy(hidden.requires_grad_(), weight.requires_grad_())
    frozen = [
        Policy(hidden.detach() + normal(case.tokens, case.hidden, scale=0.1), weight.detach().clone())
        for _ in range(1 + case.teachers)
    ]
    return [student, *frozen]


def naive_candidates(student: Policy, others: list[Policy], candidates: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """What plain torch code does: full logits, in the models' own precision and then float32."""
    logits = F.linear(student.hidden, student.weight).float()
    ids = top_candidates(logits, candidates)
    with torch.no_grad():
        scored = [F.linear(other.hidden, other.weight).float().gather(-1, ids) for other in others]
    return ids, logits.gather(-1, ids), scored


def head_candidates(student: Policy, others: list[Policy], candidates: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """What the trainer does."""
    head = Head(student.weight)
    ids, _ = head.top(student.hidden, candidates)
    with torch.no_grad():
        scored = [Head(other.weight).logits_of(other.hidden, ids) for other in others]
    return ids, head.logits_of(student.hidden, ids), scored


def step(case: Case, models: list[Policy]) -> float:
    """Top-C, scores, weights, mixed target, reverse KL, mean, backward; one response of all tokens."""
    student, *others = models
    if case.implementation in PEERS:
        return PEERS[case.implementation](student, others[1:])
    find = naive_candidates if case.implementation == "naive" else head_candidates
    with use_implementation("reference" if case.implementation == "naive" else case.implementation), fall_backs_fail():
        return loss_and_backward(case, *find(student, others, case.candidates))


@contextmanager
def fall_backs_fail() -> Iterator[None]:
    """What a head cannot take goes to another head with a warning. A row must not have the first one's name then."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not the fused kernels")
        try:
            yield
        except UserWarning as told:
            raise SystemExit(str(told)) from None


def loss_and_backward(case: Case, ids: Tensor, student_logits: Tensor, scored: list[Tensor]) -> float:
    """From candidate logits; with the implementation in use, as the trainer does."""
    reference, *teachers = [logits.unsqueeze(0) for logits in scored]
    mask = torch.ones(1, case.tokens, device=case.device)
    at = CandidateState(
        student_logp=renormalise(student_logits).unsqueeze(0),
        teacher_logp=renormalise(torch.stack(teachers)),
        reference_logp=renormalise(reference),
        candidate_ids=ids.unsqueeze(0),
        sampled_ids=ids[:, 0].unsqueeze(0),
        mask=mask,
    )
    loss = mean_of_response_means(trust_objective(at, None, gamma=7.0).token_loss, mask)
    loss.backward()
    return loss.item()


def forget_gradients(models: list[Policy]) -> None:
    models[0].hidden.grad = models[0].weight.grad = None


def timed(cases: list[Case], repeats: int) -> dict[Case, float]:
    """Median milliseconds of each case, all of one shape, taken in turn. They must agree on the loss first."""
    models = policies(cases[0])
    losses = {case: step(case, models) for case in cases}  # also the warm-up
    ours = [loss for case, loss in losses.items() if case.implementation not in PEERS]
    if not all(math.isclose(loss, ours[0], rel_tol=0.02) for loss in ours):
        raise SystemExit(f"the implementations disagree on the loss, so their times mean nothing: {losses}")
    taken: dict[Case, list[float]] = {case: [] for case in cases}
    for case in cases * repeats:
        forget_gradients(models)
        started = time.perf_counter()
        step(case, models)  # ends with .item(), which waits for a GPU
        taken[case].append(1000 * (time.perf_counter() - started))
    return {case: statistics.median(values) for case, values in taken.items()}


def extra_gib(case: Case) -> float:
    """Peak memory of one step over what its inputs and their gradients hold: the allocator's on a GPU, the process's on
    a CPU (Linux; NaN elsewhere)."""
    tiny = replace(case, tokens=8, hidden=8, vocab=64, candidates=4)
    step(tiny, policies(tiny))  # what libraries allocate at their first use is not the step's
    models = policies(case)
    gradients = 0 if case.implementation == "gemm" else sum(x.nbytes for x in (models[0].hidden, models[0].weight))
    if case.device.startswith("cuda"):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step(case, models)
        return (torch.cuda.max_memory_allocated() - before - gradients) / GIB
    status = Path("/proc/self/status")
    if not status.exists():
        return math.nan

    def resident(field: str) -> int:
        return 1024 * int(next(line for line in status.read_text().splitlines() if line.startswith(field)).split()[1])

    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    step(case, models)
    return (resident("VmHWM") - before - gradients) / GIB


def in_own_process(case: Case) -> float:
    spawn, threads = multiprocessing.get_context("spawn"), torch.get_num_threads()
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        return pool.submit(extra_gib, case).result()


def main(
    tokens: Annotated[str, typer.Option(help="Response tokens, one shape for each.")] = "512,2048",
    vocab: Annotated[str, typer.Option(help="Vocabulary sizes, one shape for each.")] = "49152",
    hidden: Annotated[int, typer.Option(help="Hidden size of every model.")] = 576,
    candidates: Annotated[str, typer.Option(help="Candidates per token, C, one shape for each.")] = "128",
    teachers: Annotated[str, typer.Option(help="Teachers, K, one shape for each; the reference comes on top.")] = "3",
    dtype: Annotated[str, typer.Option(help="Precision of hidden states and weights.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    implementations: Annotated[str, typer.Option(help="What to compare; ratios are to the first.")] = "naive,chunked",
    repeats: Annotated[int, typer.Option(help="Timed runs of each case; 0 measures memory alone.")] = 5,
    sweep: Annotated[bool, typer.Option(help="Memory alone, over four token counts and three vocabularies.")] = False,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads; a busy machine gives steadier ratios with 1.")
    ] = None,
    output: Annotated[Path, typer.Option(help="CSV file to append to.", show_default="results/heads.csv")] = RESULTS,
) -> None:
    """Compare implementations of the output head: milliseconds and extra memory of loss and backward."""
    if sweep:
        tokens, vocab, repeats = "512,1024,2048,4096", "12288,24576,49152", 0
    if threads:
        torch.set_num_threads(threads)
    chosen = known("implementation", implementations, [*OURS, *PEERS])
    shapes = [
        [Case(device, name, k, t, hidden, v, c, dtype) for name in chosen]
        for v, t, c, k in itertools.product(*(map(int, x.split(",")) for x in (vocab, tokens, candidates, teachers)))
    ]
    rows: list[dict[str, object]] = []
    table = Table("head", "K", "C", "tokens", "vocab", "ms", "ratio", "extra GiB", "ratio", "full logits GiB")
    for cases in track(shapes, description="shapes", console=Console(stderr=True)):
        measure = extra_gib if device.startswith("cuda") else in_own_process
        memory = {case: measure(case) for case in cases}
        times = timed(cases, repeats) if repeats else dict.fromkeys(cases, math.nan)
        for case in cases:
            first = cases[0]
            table.add_row(
                case.implementation,
                str(case.teachers),
                str(case.candidates),
                str(case.tokens),
                str(case.vocab),
                number(times[case], 1),
                number(times[case] / times[first], 2),
                number(memory[case], 3),
                number(memory[case] / memory[first], 2),
                f"{4 * case.tokens * case.vocab / GIB:.3f}",
            )
            measured = {"milliseconds": number(times[case], 2), "extra_gib": number(memory[case], 4)}
            rows.append({**asdict(case), **measured, **versions(case.device)})
    append(rows, output)
    Console().print(table)
    print(f"{len(rows)} rows appended to {output}")


if __name__ == "__main__":
    typer.run(main)
