"""Peak memory of a whole training step by phase, beside what `trustmopd plan` says it is.

    python benchmarks/bench_peak.py --shapes smollm2-135m,smollm3-3b
    python benchmarks/bench_peak.py --shapes tiny --responses 8 --tokens 32 --device cpu     # does it run at all

The real trainer on random weights, as in bench_step.py, of whose models and rollouts this makes use; `--rollouts
sampled` samples them with transformers instead, which takes a while. `ask` is when the frozen models read, `train` when
the student learns. The first step warms up: AdamW's moments appear at its end. On a CPU nothing is measured.
"""

import gc
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from bench_step import NAMES, PLACEMENTS, PROMPT, RANK, SHAPES, Case, GivenRollouts, trainer
from rates import shape_of_llama
from record import append, known, number, versions
from rich.console import Console
from rich.table import Table

from trustmopd import TrustMOPDTrainer
from trustmopd.planning import Setup, Workload, moments
from trustmopd.planning.shapes import Shape
from trustmopd.planning.workload import FrozenModel
from trustmopd.training.step.timing import PhaseClock

RESULTS = Path(__file__).parent / "results" / "peak.csv"
MOMENTS = {"rollout": "rollout", "teachers": "ask", "reference": "ask", "student": "train", "backward": "train"}
ROLLOUTS = {"given": GivenRollouts, "sampled": TrustMOPDTrainer}


class PeakClock(PhaseClock):
    """The peak of memory in each phase, in GiB; what belongs to none is the optimizer's."""

    def __init__(self, device: torch.device):
        super().__init__(device)
        self.peaks: defaultdict[str, float] = defaultdict(float)

    def _turn(self) -> None:
        super()._turn()
        if self._device.type == "cuda":
            moment = MOMENTS.get(self._open[-1], "rest") if self._open else "rest"
            self.peaks[moment] = max(self.peaks[moment], torch.cuda.max_memory_allocated(self._device) / 2**30)
            torch.cuda.reset_peak_memory_stats(self._device)


def workload(shape: Shape, *, trust: bool, tokens: int, responses: int, micro_batch: int, candidates: int) -> Workload:
    """What bench_step's trainer does, in the planner's numbers."""
    widths = 4 * shape.hidden + 2 * shape.hidden + shape.key_value  # in and out of q, o and of k, v
    reference = FrozenModel(shape, is_student=True)
    return Workload(
        student=shape,
        frozen=(*(FrozenModel(shape, teachers=(name,)) for name in NAMES), *([reference] if trust else [])),
        is_lora=False,
        lora=shape.layers * RANK * widths,
        prompt=PROMPT,
        response=tokens,
        batch=responses,
        micro_batch=micro_batch,
        candidates=candidates,
    )


def measure(case: Case, student_dtype: str, rollouts: str) -> dict[str, float]:
    """GiB by moment, of the step after the one that warms up."""
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(case, 1, Path(folder), kind=ROLLOUTS[rollouts], student_dtype=getattr(torch, student_dtype))
        clock = PeakClock(made.accelerator.device)
        made.context = replace(made.context, clock=clock)
        finish = made.step_log.finish

        def forget_the_warm_up(step: int) -> dict[str, float]:
            if step == 0:
                clock._turn()
                clock.peaks.clear()
            return finish(step)

        made.step_log.finish = forget_the_warm_up
        made.train()
        clock._turn()
    del made
    gc.collect()
    if case.device == "cuda":
        torch.cuda.empty_cache()
    return dict(clock.peaks)


def main(
    shapes: Annotated[str, typer.Option(help=f"Model shapes: {', '.join(SHAPES)}.")] = "smollm2-135m,smollm3-3b",
    allocations: Annotated[str, typer.Option(help="Rules to compare.")] = "uniform,trust",
    placements: Annotated[str, typer.Option(help="resident, offload, adapters.")] = ",".join(PLACEMENTS),
    dtypes: Annotated[str, typer.Option(help="The student's: float32, bfloat16.")] = "bfloat16",
    rollouts: Annotated[str, typer.Option(help="given, or sampled with transformers.")] = "given",
    responses: Annotated[int, typer.Option(help="Responses a step.")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens a response.")] = 1024,
    micro_batch: Annotated[int, typer.Option(help="Responses a micro-batch.")] = 4,
    candidates: Annotated[int, typer.Option(help="Candidates per token, C.")] = 128,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    output: Annotated[Path, typer.Option(help="CSV file to append to.", show_default="results/peak.csv")] = RESULTS,
) -> None:
    """Compare the planner's memory with a step's."""
    known("rollouts", rollouts, ROLLOUTS)
    table = Table("shape", "placement", "allocation", "student", "moment", "measured GiB", "predicted GiB", "off by")
    for shape in known("shape", shapes, SHAPES):
        for placement in known("placement", placements, PLACEMENTS):
            for rule in known("allocation", allocations, ("uniform", "trust")):
                for dtype in known("dtype", dtypes, ("float32", "bfloat16")):
                    case = Case(device, shape, rule, placement, responses, tokens, micro_batch, candidates)
                    given = workload(
                        shape_of_llama(shape),
                        trust=rule == "trust",
                        tokens=tokens,
                        responses=responses,
                        micro_batch=micro_batch,
                        candidates=candidates,
                    )
                    expected = {n: m.total for n, m in moments(given, Setup(placement, "DDP", dtype)).items()}
                    if rollouts == "given":
                        del expected["rollout"]
                    found = measure(case, dtype, rollouts)
                    expected["peak"] = max(expected.values())
                    found["peak"] = max(found.values(), default=float("nan"))
                    row = {**vars(case), "student_dtype": dtype, "rollouts": rollouts}
                    for moment in ("rollout", "ask", "train", "rest", "peak"):
                        seen, said = found.get(moment, float("nan")), expected.get(moment, float("nan"))
                        row |= {f"{moment}_gib": number(seen, 2), f"predicted_{moment}_gib": number(said, 2)}
                        cells = (shape, placement, rule, dtype, moment, number(seen, 2), number(said, 2))
                        table.add_row(*cells, number(100 * (said / seen - 1), 1))
                    append([{**row, **versions(device)}], output)
                    print(row, flush=True)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
