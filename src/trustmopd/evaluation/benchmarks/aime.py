"""AIME 2025 and 2026: thirty problems each, the answer an integer from 0 to 999."""

from collections.abc import Mapping
from typing import Any

from trustmopd.evaluation.benchmark import Benchmark, Row, text_of
from trustmopd.evaluation.graders import mathematics


def _row(source: Mapping[str, Any], number: int) -> Row:
    problem = text_of(source, "problem", "question")
    identity = text_of({"number": number, **source}, "id", "problem_idx", "number")
    prompt = f"{problem}\n\n{mathematics.INSTRUCTION}"
    return {**source, "id": identity, "prompt": prompt, "answer": text_of(source, "answer")}


BENCHMARKS = [
    Benchmark(
        name=f"aime{year}",
        domain="math",
        hub=f"math-ai/aime{year}",
        samples=16,
        row=_row,
        grader=mathematics.grade_answer,
        ready=mathematics.ready,
    )
    for year in (25, 26)
]
