"""The held-out prompts: three domains, SVAMP, and pairs of domains. The tasks' own checks grade them.

A recipe names one as `studies/smollm2/benchmarks.py:smollm2_math`, and gives its file in `evaluation.data`."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from studies.smollm2.domains import evaluation_tasks
from studies.smollm2.mixed import KINDS
from studies.smollm2.tasks import DOMAINS, Check, Task, passes, row_of
from trustmopd.evaluation.benchmark import Benchmark, Grade, Row, text_of
from trustmopd.evaluation.sandbox.sandbox import check_sandbox


def name_of(kind: str) -> str:
    return f"smollm2_{kind.replace('+', '_')}"


def _row(source: Mapping[str, Any], number: int) -> Row:
    checks = tuple(Check(**check) for check in source["checks"])
    task = Task(text_of(source, "id"), text_of(source, "domain"), text_of(source, "prompt"), checks)
    return {**row_of(task), "task": task}


def _grade(row: Row, response: str) -> Grade:
    return Grade(float(passes(row["task"], response)), {"extracted": response})


def _generated(kind: str, count: int) -> list[dict[str, Any]]:
    return [row_of(task) for task in evaluation_tasks(kind, count, {})]


def _benchmark(kind: str, domain: str) -> Benchmark:
    judged: dict[str, Any] = {"ready": check_sandbox} if "code" in kind else {}
    return Benchmark(
        name=name_of(kind), domain=domain, generated=partial(_generated, kind), row=_row, grader=_grade, **judged
    )


BENCHMARKS = [
    *(_benchmark(domain, domain) for domain in DOMAINS),
    _benchmark("svamp", "math"),
    *(_benchmark(kind, "mixed") for kind in KINDS),
]
