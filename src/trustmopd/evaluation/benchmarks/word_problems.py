"""GSM8K and SVAMP: word problems with one number for an answer."""

from collections.abc import Mapping
from typing import Any

from trustmopd.evaluation import mathematics
from trustmopd.evaluation.benchmark import Benchmark
from trustmopd.evaluation.rows import Row, text_of


def _gsm8k(source: Mapping[str, Any], number: int) -> Row:
    prompt = f"{text_of(source, 'question')}\n\n{mathematics.INSTRUCTION}"
    identity = text_of({"number": number, **source}, "id", "number")
    return {**source, "id": identity, "prompt": prompt, "answer": text_of(source, "answer")}


def _svamp(source: Mapping[str, Any], number: int) -> Row:
    body = text_of(source, "Body").strip()
    prompt = f"{body}{'' if body.endswith(('.', '?', '!')) else '.'} {text_of(source, 'Question')}"
    return {
        **source,
        "id": text_of(source, "ID"),
        "prompt": f"{prompt}\n\n{mathematics.INSTRUCTION}",
        "answer": text_of(source, "Answer"),
    }


BENCHMARKS = [
    Benchmark(
        name=name,
        domain="math",
        hub=hub,
        config=config,
        row=row,
        grader=mathematics.grade_number,
        ready=mathematics.ready,
    )
    for name, hub, config, row in (
        ("gsm8k", "openai/gsm8k", "main", _gsm8k),
        ("svamp", "ChilleD/SVAMP", None, _svamp),
    )
]
