"""MBPP and HumanEval: one function each, checked by asserts."""

from collections.abc import Mapping
from typing import Any

from trustmopd.evaluation.benchmark import Benchmark, Row, text_of
from trustmopd.evaluation.graders import programs
from trustmopd.evaluation.sandbox.sandbox import check_sandbox


def _mbpp(source: Mapping[str, Any], number: int) -> Row:
    """The original set and the sanitised one, which name their fields differently."""
    tests = "\n".join(source["test_list"])
    if not tests.strip():
        raise ValueError("it has no tests")
    prompt = (
        f"{text_of(source, 'text', 'prompt')}\n\nYour code should pass these tests:\n```python\n{tests}\n```\n\n"
        "Write the function in Python, whole, in one ```python block."
    )
    # Behind the response, because some of the set-up uses what it defines.
    tests = "\n".join([*(source.get("test_imports") or []), source.get("test_setup_code") or "", tests])
    return {**source, "id": text_of(source, "task_id"), "prompt": prompt, "tests": tests}


def _humaneval(source: Mapping[str, Any], number: int) -> Row:
    start = text_of(source, "prompt")
    prompt = f"Complete this function. Answer with all of it in one ```python block.\n\n```python\n{start}```"
    tests = f"{text_of(source, 'test')}\n\ncheck({text_of(source, 'entry_point')})\n"
    # The start goes before the response: it has the imports, and a response that is only a body continues it.
    return {**source, "id": text_of(source, "task_id"), "prompt": prompt, "tests": tests, "setup": start.rstrip("\n")}


BENCHMARKS = [
    Benchmark(name=name, domain="code", hub=hub, row=row, grader=programs.grade_asserts, ready=check_sandbox)
    for name, hub, row in (
        ("mbpp", "google-research-datasets/mbpp", _mbpp),
        ("humaneval", "openai/openai_humaneval", _humaneval),
    )
]
