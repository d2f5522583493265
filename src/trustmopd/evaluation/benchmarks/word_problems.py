"""GSM8K and SVAMP: word problems with one number for an answer."""

from collections.abc import Mapping
from typing import Any

from trustmopd.evaluation.benchmark import Benchmark, Row, text_of
from trustmopd.evaluation.graders import numeric
from trustmopd.evaluation.graders.mathematics import INSTRUCTION


def _number(source: Mapping[str, Any], field: str) -> str:
    text = text_of(source, field)
    if numeric.number_of(text) is None:
        raise ValueError(f"{field} = {text!r:.60} is not a number")
    return text


def _gsm8k(source: Mapping[str, Any], number: int) -> Row:
    prompt = f"{text_of(source, 'question')}\n\n{INSTRUCTION}"
    identity = text_of({"number": number, **source}, "id", "number")
    return {**source, "id": identity, "prompt": prompt, "answer": _number(source, "answer")}


def _svamp(source: Mapping[str, Any], number: int) -> Row:
    body = text_of(source, "Body").strip()
    prompt = f"{body}{'' if body.endswith(('.', '?', '!')) else '.'} {text_of(source, 'Question')}"
    return {
        **source,
        "id": text_of(source, "ID"),
        "prompt": f"{prompt}\n\n{INSTRUCTION}",
        "answer": _number(source, "Answer"),
    }


BENCHMARKS = [
    Benchmark(
        name=name,
        domain="math",
        hub=hub,
        config=config,
        row=row,
        grader=numeric.grade_number,
    )
    for name, hub, config, row in (
        ("gsm8k", "openai/gsm8k", "main", _gsm8k),
        ("svamp", "ChilleD/SVAMP", None, _svamp),
    )
]
