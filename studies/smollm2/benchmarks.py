"""The held-out prompts of the SmolLM2 study: its three domains, and the pairs of them. Its own checks grade them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from studies.smollm2.code_judge import judge
from studies.smollm2.mixed import KINDS
from studies.smollm2.tasks import DOMAINS, Check, Task, passes, row_of
from trustmopd.evaluation.benchmark import Benchmark, Grade
from trustmopd.evaluation.questions import Row, text_of


def _row(source: Mapping[str, Any], number: int) -> Row:
    checks = tuple(Check(each["kind"], each["arguments"]) for each in source["checks"])
    task = Task(text_of(source, "id"), text_of(source, "domain"), text_of(source, "prompt"), checks)
    return {**row_of(task), "task": task}


def _grade(row: Row, response: str) -> Grade:
    runs_code = any(check.kind == "function" for check in row["task"].checks)
    how = {"judged_by": judge()} if runs_code else {}
    return Grade(float(passes(row["task"], response)), {"extracted": response, **how})


def _generated(kind: str, count: int) -> list[dict[str, Any]]:
    from studies.smollm2.domains import evaluation_tasks

    return [row_of(task) for task in evaluation_tasks(kind, count, {})]


BENCHMARKS = [
    Benchmark(
        name=f"smollm2_{kind.replace('+', '_')}",
        domain=kind if kind in DOMAINS else "mixed",
        generated=partial(_generated, kind),
        row=_row,
        grader=_grade,
    )
    for kind in (*DOMAINS, *KINDS)
]
