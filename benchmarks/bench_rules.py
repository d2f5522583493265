"""What a rule costs: scores, weights, target, loss and backward of one batch, beside the paper's own rule.

    python benchmarks/bench_rules.py                    # 32 responses of 128 tokens, three teachers, C = 128
    python benchmarks/bench_rules.py --tokens 512 --candidates 64

Every rule has its turn in every round, so that a machine that slows down slows all of them; the ratio to trust is of
the medians over rounds. `plain` is trust by the functions of `trustmopd.method`; where the fused kernel runs, `trust`
is that.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from record import append, versions
from torch import Tensor

from trustmopd import TrustMOPDConfig
from trustmopd.heads import trust_objective
from trustmopd.method import SCORES, CandidateState, Objective, objective, renormalise, response_means, trust
from trustmopd.training.step.allocation import allocation_rule
from trustmopd.training.step.batch import Batch, Rollout, RolloutId
from trustmopd.training.step.target import target_rule

RESULTS = Path(__file__).parent / "results" / "rules.csv"
TEACHERS = ["math", "code", "if"]
MU = torch.tensor([0.5, 1.0, 2.0])
ALLOCATIONS = ("uniform", "random", "argmax", "directed", "expert_align", "entropy", "novelty", "consensus")
TARGETS = ("extrapolated", "shift")


def batch_of(responses: int, tokens: int, candidates: int, device: str) -> tuple[Batch, CandidateState, Tensor]:
    generator = torch.Generator(device).manual_seed(0)

    def logits(*shape: int) -> Tensor:
        return torch.randn(*shape, responses, tokens, candidates, generator=generator, device=device)

    ids = torch.arange(candidates, device=device).expand(responses, tokens, -1)
    mask = torch.ones(responses, tokens, dtype=torch.long, device=device)
    tensors = {"prompt_ids": mask, "prompt_mask": mask, "completion_ids": ids[..., 0], "completion_mask": mask}
    rollouts = [Rollout(RolloutId(row), str(row), teacher=row % len(TEACHERS)) for row in range(responses)]
    student, reference = logits().requires_grad_(), renormalise(logits())
    at = CandidateState(
        student_logp=renormalise(student),
        teacher_logp=renormalise(reference + 0.3 * logits(len(TEACHERS))),
        reference_logp=reference,
        candidate_ids=ids,
        sampled_ids=ids[..., 0],
        mask=mask,
        initial_logp=reference,
    )
    return Batch.of(tensors, rollouts), at, student


def rules_of(batch: Batch, at: CandidateState) -> dict[str, Callable[[], Objective]]:
    mu = MU.to(at.mask.device)

    def rule(**parts: Any) -> Callable[[], Objective]:
        args = TrustMOPDConfig(output_dir="unused", bf16=False, **parts)
        return lambda: objective(
            at,
            allocation_rule(args, TEACHERS, batch),
            SCORES["displacement"] if args.scored else None,
            mu if args.calibrates else None,
            target=target_rule(args.rules.target, 0),
        )

    rules: dict[str, Callable[[], Objective]] = {
        "trust": lambda: trust_objective(at, mu, 7.0),
        "plain": lambda: objective(at, trust(7.0), SCORES["displacement"], mu),
    }
    rules |= {name: rule(allocation=name) for name in ALLOCATIONS}
    return rules | {name: rule(target=name) for name in TARGETS}


def main(
    responses: Annotated[int, typer.Option(help="Of a batch.")] = 32,
    tokens: Annotated[int, typer.Option(help="Of a response.")] = 128,
    candidates: Annotated[int, typer.Option(help="C.")] = 128,
    rounds: Annotated[int, typer.Option(help="Turns of every rule.")] = 15,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    output: Annotated[Path, typer.Option(help="The rows are appended here.")] = RESULTS,
) -> None:
    batch, at, student = batch_of(responses, tokens, candidates, device)
    rules = rules_of(batch, at)
    taken: dict[str, list[float]] = {name: [] for name in rules}
    for _ in range(rounds + 1):
        for name, run in rules.items():
            began = time.perf_counter()
            (gradient,) = torch.autograd.grad(
                response_means(run().token_loss, at.mask).mean(), student, retain_graph=True
            )
            assert bool(gradient.isfinite().all())
            if device != "cpu":
                torch.cuda.synchronize()
            taken[name].append(time.perf_counter() - began)
    medians = {name: median(times[1:]) for name, times in taken.items()}  # the first round warms up
    case = {"responses": responses, "tokens": tokens, "candidates": candidates, "device": device}
    rows = [
        {
            **case,
            "rule": name,
            "us_per_token": f"{1e6 * seconds / responses / tokens:.2f}",
            "times_trust": f"{seconds / medians['trust']:.2f}",
            **versions(device),
        }
        for name, seconds in medians.items()
    ]
    append(rows, output)
    for row in rows:
        print(f"{row['rule']:14} {row['us_per_token']:>8} µs a token   {row['times_trust']:>5} × trust")


if __name__ == "__main__":
    typer.run(main)
