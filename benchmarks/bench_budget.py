"""Token budgets against padded micro-batches, on responses of very different lengths: the real trainer, random weights.

    python benchmarks/bench_budget.py                                   # padded, 16,384 and 32,768 tokens a pass
    python benchmarks/bench_budget.py --shape tiny --responses 8 --mean 40 --longest 128 --budgets 0,256 --device cpu

Response lengths are log-normal, with this mean before they are cut at `--longest`. Rollouts are given, as in
bench_step.py: the same tokens for every case, so the losses must agree. Budget 0 is no budget: micro-batches of
`--micro-batch` rows, padded to the longest response of the step. Each case warms up for one step, with responses of
an eighth of the length, then counts `--steps`.
`forward_backward` is the student's forward and backward; `reading` is that of the teachers and the reference.
"""

import gc
import json
import math
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from bench_step import NAMES, PROMPT, SHAPES, WARM_UP, GivenRollouts, WallClock, model, tokenizer
from datasets import Dataset
from record import append, known, number, versions
from rich.console import Console
from rich.table import Table
from transformers.trainer_callback import PrinterCallback

from trustmopd import TrustMOPDConfig
from trustmopd.policies.reading import rows_under

RESULTS = Path(__file__).parent / "results" / "budget.csv"
SIGMA = 0.8
#: Losses in bfloat16, through other attention kernels: closer than this they are the same.
SAME_LOSS = 0.02


@dataclass(frozen=True)
class Case:
    """One way to read a step. The fields are columns of the results file, in its order; `budget` 0 is none."""

    device: str
    shape: str
    responses: int
    mean: int
    longest: int
    micro_batch: int
    candidates: int
    budget: int

    @property
    def lengths(self) -> list[int]:
        normal = torch.randn(self.responses, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        drawn = (math.log(self.mean) - SIGMA**2 / 2 + SIGMA * normal).exp()
        return drawn.round().clamp(1, self.longest).long().tolist()

    @property
    def tokens_read(self) -> int:
        """By the student in a step, padding included."""
        rows = [PROMPT + length for length in self.lengths]
        if not self.budget:
            return len(rows) * max(rows)
        return sum(len(group) * rows[group[0]] for group in rows_under(self.budget, rows))


class GivenLengths(GivenRollouts):
    lengths: list[int]

    def _generate_single_turn(self, prompt_ids: list, *args: Any, **kwargs: Any) -> list[list[int]]:
        whole = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        part = 8 if self.state.global_step < WARM_UP else 1
        return [ids[: max(1, length // part)] for ids, length in zip(whole, self.lengths, strict=True)]


def trainer(case: Case, steps: int, folder: Path) -> GivenLengths:
    args = TrustMOPDConfig(
        output_dir=str(folder),
        calibrated=False,  # the same work at a step, without the batches before it
        num_candidates=case.candidates,
        global_batch_size=case.responses,
        per_device_train_batch_size=case.micro_batch,
        max_tokens_per_micro_batch=case.budget or None,
        max_completion_length=case.longest,
        max_steps=WARM_UP + steps,
        record_allocation_every=0,
        gradient_checkpointing=True,
        bf16=True,
        use_cpu=case.device == "cpu",
        save_strategy="no",
        disable_tqdm=True,
    )
    words = " ".join(f"t{i}" for i in range(4, 4 + PROMPT))
    prompts = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": words}]] * ((WARM_UP + steps) * case.responses)}
    )
    made = GivenLengths(
        model(case, 0),
        {name: model(case, index + 1) for index, name in enumerate(NAMES)},
        args=args,
        train_dataset=prompts,
        processing_class=tokenizer(SHAPES[case.shape][-1]),
    )
    made.lengths = case.lengths
    made.remove_callback(PrinterCallback)
    return made


def measure(case: Case, steps: int) -> dict[str, float]:
    """Medians over the steps after the warm-up, and the loss of the first of them."""
    clock = WallClock(case.device)
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(case, steps, Path(folder))
        made.add_callback(clock)
        made.train()
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    del made
    gc.collect()
    if case.device == "cuda":
        torch.cuda.empty_cache()
    logged = [line for line in lines if "loss" in line]

    def median(*phases: str) -> float:
        return statistics.median(sum(line[f"seconds/{phase}"] for phase in phases) for line in logged[WARM_UP:])

    return {
        "forward_backward": median("student", "backward"),
        "reading": median("teachers", "reference"),
        "step": statistics.median(clock.seconds[WARM_UP:]),
        "peak_gib": statistics.median(line["memory/peak_gib"] for line in logged[WARM_UP:]),
        "loss": logged[WARM_UP]["loss"],
    }


def main(
    shape: Annotated[str, typer.Option(help=f"Model shape: {', '.join(SHAPES)}.")] = "smollm3-3b",
    budgets: Annotated[str, typer.Option(help="Tokens a pass, 0 for padded micro-batches.")] = "0,16384,32768",
    responses: Annotated[int, typer.Option(help="Responses a step.")] = 64,
    mean: Annotated[int, typer.Option(help="Mean length before the cut.")] = 2500,
    longest: Annotated[int, typer.Option(help="Where responses are cut.")] = 8192,
    micro_batch: Annotated[int, typer.Option(help="Rows of a padded micro-batch.")] = 4,
    candidates: Annotated[int, typer.Option(help="Candidates per token, C.")] = 128,
    steps: Annotated[int, typer.Option(help="Steps of each case that count, after one that does not.")] = 1,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    output: Annotated[Path, typer.Option(help="CSV file to append to.", show_default="results/budget.csv")] = RESULTS,
) -> None:
    """Compare token budgets with padded micro-batches on one training step."""
    known("shape", shape, SHAPES)
    cases = [
        Case(device, shape, responses, mean, longest, micro_batch, candidates, int(budget))
        for budget in budgets.split(",")
    ]
    table = Table("budget", "tokens read", "forward and backward s", "reading s", "step s", "peak GiB", "loss")
    first: dict[str, float] = {}
    for case in cases:
        found = measure(case, steps)
        first = first or found
        if not math.isclose(found["loss"], first["loss"], rel_tol=SAME_LOSS):
            raise SystemExit(f"budget {case.budget} has loss {found['loss']}, budget {cases[0].budget} {first['loss']}")
        seconds = {f"{name}_seconds": number(found[name], 3) for name in ("forward_backward", "reading", "step")}
        row = {**seconds, "peak_gib": number(found["peak_gib"], 2), "loss": number(found["loss"], 8)}
        table.add_row(str(case.budget or "padded"), f"{case.tokens_read:,}", *row.values())
        append([{**asdict(case), "tokens_read": case.tokens_read, **row, **versions(device)}], output)
        print(
            case.budget,
            *(f"{name} {first[name] / found[name]:.2f}×" for name in ("forward_backward", "reading", "step")),
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
