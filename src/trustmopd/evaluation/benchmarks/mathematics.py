"""Mathematics: AIME 2025 and 2026, thirty problems each, the answer an integer from 0 to 999; GSM8K and SVAMP, word
problems with one number for an answer."""

from collections.abc import Mapping
from typing import Any

from trustmopd.evaluation.benchmark import Benchmark, Row, text_of
from trustmopd.evaluation.graders import mathematics, numeric


def _aime(source: Mapping[str, Any], number: int) -> Row:
    problem = text_of(source, "problem", "question")
    identity = text_of({"number": number, **source}, "id", "problem_idx", "number")
    prompt = f"{problem}\n\n{mathematics.INSTRUCTION}"
    return {**source, "id": identity, "prompt": prompt, "answer": text_of(source, "answer")}


def _number(source: Mapping[str, Any], field: str) -> str:
    text = text_of(source, field)
    if numeric.number_of(text) is None:
        raise ValueError(f"{field} = {text!r:.60} is not a number")
    return text


def _gsm8k(source: Mapping[str, Any], number: int) -> Row:
    prompt = f"{text_of(source, 'question')}\n\n{mathematics.INSTRUCTION}"
    identity = text_of({"number": number, **source}, "id", "number")
    return {**source, "id": identity, "prompt": prompt, "answer": _number(source, "answer")}


def _svamp(source: Mapping[str, Any], number: int) -> Row:
    body = text_of(source, "Body").strip()
    prompt = f"{body}{'' if body.endswith(('.', '?', '!')) else '.'} {text_of(source, 'Question')}"
    return {
        **source,
        "id": text_of(source, "ID"),
        "prompt": f"{prompt}\n\n{mathematics.INSTRUCTION}",
        "answer": _number(source, "Answer"),
    }


BENCHMARKS = [
    *(
        Benchmark(
            name=f"aime{year}",
            domain="math",
            hub=f"math-ai/aime{year}",
            samples=16,
            row=_aime,
            grader=mathematics.grade_answer,
            ready=mathematics.ready,
        )
        for year in (25, 26)
    ),
    Benchmark(name="gsm8k", domain="math", hub="openai/gsm8k", config="main", row=_gsm8k, grader=numeric.grade_number),
    Benchmark(name="svamp", domain="math", hub="ChilleD/SVAMP", row=_svamp, grader=numeric.grade_number),
]
