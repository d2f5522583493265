"""Mathematics: SVAMP's and GSM8K's word problems with worked solutions, asked as `evaluate` asks them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from studies.smollm2.held_out import part
from studies.smollm2.tasks import Task, number_task
from studies.smollm2.worked_solutions import worked_equation, worked_lines
from trustmopd.evaluation.benchmark import Row, Rows
from trustmopd.evaluation.benchmarks.mathematics import BENCHMARKS
from trustmopd.evaluation.graders.numeric import grade_number

_SVAMP, _GSM8K = (next(one for one in BENCHMARKS if one.name == name) for name in ("svamp", "gsm8k"))


def svamp_rows(held_out: bool, path: str | Path | None = None) -> Rows:
    """SVAMP's thousand problems, split by the hashes of their IDs: 300 to evaluate, 700 to train."""
    rows = replace(_SVAMP, split="train+test").load(path)
    chosen = set(part([row["id"] for row in rows], held_out))
    rows[:] = [row for row in rows if row["id"] in chosen]
    return rows


def svamp(rows: Sequence[Row]) -> list[Task]:
    return [_task("svamp", row, worked_equation(str(row["Equation"]))) for row in rows]


def gsm8k(path: str | Path | None = None, most_steps: int = 9) -> list[Task]:
    """GSM8K's train problems whose solution has at most so many lines."""
    rows = replace(_GSM8K, split="train").load(path)
    return [
        _task("gsm8k", {**row, "answer": answer.replace(",", "")}, worked_lines(lines, answer))
        for row in rows
        for lines, _, answer in [str(row["answer"]).partition("\n#### ")]
        if lines.count("\n") < most_steps
    ]


def check(arguments: dict[str, Any], response: str) -> bool:
    """As `evaluate` grades: by the last number of the response."""
    return grade_number(arguments, response).score == 1.0


def _task(source: str, row: Row, solution: str) -> Task:
    return number_task(f"{source}/{row['id']}", str(row["prompt"]), str(row["answer"]), solution)
