"""The small world's three domains, and the pairs of them. Prompts are generated; its verifier grades them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from trustmopd.evaluation.benchmark import Benchmark, Grade, Row, text_of
from trustmopd.quickstart.prompts import evaluation_set
from trustmopd.quickstart.tasks import DOMAINS, MIXTURES, parse, verify


def _row(source: Mapping[str, Any], number: int) -> Row:
    task = parse(text_of(source, "prompt"))
    return {**source, "id": task.id, "prompt": task.prompt}


def _grade(row: Row, response: str) -> Grade:
    verdict = verify(parse(row["prompt"]), response)
    details = {"understood": verdict.understood, "capabilities": dict(verdict.capabilities)}
    return Grade(float(verdict.right), {"extracted": response.rstrip(), **details})


def _generated(kind: str, count: int) -> list[dict[str, str]]:
    return [{"prompt": task.prompt} for task in evaluation_set(kind, count)]


BENCHMARKS = [
    Benchmark(
        name=f"testbed_{kind.replace('+', '_')}",
        domain=kind,
        generated=partial(_generated, kind),
        row=_row,
        grader=_grade,
    )
    for kind in (*DOMAINS, *MIXTURES)
]
