"""A user's own set: a file whose rows have `id`, `prompt` and the fields of one grader."""

import ast
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trustmopd.evaluation.benchmark import Benchmark, Grade, Row, read_local, text_of
from trustmopd.evaluation.benchmarks import ifeval
from trustmopd.evaluation.graders import instructions, mathematics, numeric, programs
from trustmopd.evaluation.sandbox.sandbox import check_sandbox
from trustmopd.prompts.reading.messages import malformed

_APART = "Give such rows a file of their own"


def _answer(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text after ####, as in GSM8K, or all of it."""
    return {"answer": text_of({"answer": text_of(source, "answer").rpartition("####")[2]}, "answer").strip()}


def _tests(source: Mapping[str, Any]) -> Mapping[str, Any]:
    tests = source["tests"]
    text = "\n".join(tests) if isinstance(tests, list) else text_of(source, "tests")
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"its tests are not Python ({error})") from None
    if not statements:
        raise ValueError("its tests are empty")
    return {"tests": text}


def _input_output(source: Mapping[str, Any]) -> Mapping[str, Any]:
    found = source["input_output"]
    found = json.loads(found) if isinstance(found, str) else found
    if not isinstance(found, Mapping):
        raise ValueError(f"input_output = {found!r:.60} has no inputs and outputs")
    inputs, outputs = found["inputs"], found["outputs"]
    for texts in (inputs, outputs):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{texts!r:.60} is not a list of texts")
    if not inputs or len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs with {len(outputs)} outputs")
    return {"input_output": found}


def _instructions(source: Mapping[str, Any]) -> Mapping[str, Any]:
    instructions.check_instructions(source)
    ifeval.check_known(source)
    return {}


class _Kind(NamedTuple):
    """A kind of set: its domain, unless the rows say another, its grader, and what of a row is checked, and made ready
    for the grader."""

    domain: str
    grader: Callable[[Row, str], Grade]
    ready: Callable[[], None]
    checked: Callable[[Mapping[str, Any]], Mapping[str, Any]]


(_IFEVAL,) = ifeval.BENCHMARKS
#: By the field that a set has.
_KINDS = {
    "instruction_id_list": _Kind("if", _IFEVAL.grader, _IFEVAL.ready, _instructions),
    "answer": _Kind("math", mathematics.grade_answer, mathematics.ready, _answer),
    "tests": _Kind("code", programs.grade_asserts, check_sandbox, _tests),
    "input_output": _Kind("code", programs.grade_programs, check_sandbox, _input_output),
}


def _is_numeric(path: Path, name: str) -> bool:
    """Whether all answers are numbers. If some are 18\\pi and the like, a response's last number means little."""
    rows = read_local(path, lambda source, number: {"id": str(number), **_answer(source)}, name)
    others = [row["answer"] for row in rows if numeric.number_of(row["answer"]) is None]
    if 0 < len(others) < len(rows):
        warnings.warn(
            f"benchmark {name}: {len(others)} of {len(rows)} answers are not numbers (the first: {others[0]!r:.60}), "
            "so all rows are graded by the last \\boxed{} and math-verify. If all should be numbers, fix these rows.",
            stacklevel=4,
        )
    return not others


def own_benchmark(path: Path) -> Benchmark:
    """The grader follows from the first row's fields, and all rows must have them. `domain` (of the first row) says
    which domain's mean the set counts in."""
    name = path.name.partition(".")[0]
    first = read_local(path, lambda source, number: {"id": str(number), "prompt": "", **source}, name, limit=1)[0]
    needs = next((field for field in _KINDS if field in first), None)
    if needs is None:
        raise ValueError(
            f"{path}: its first row has {', '.join(first)}, which no grader reads. Give every row an `answer`, "
            "`tests` (asserts), `input_output` (inputs and outputs) or `instruction_id_list` with `kwargs`."
        )
    domain, grader, ready, checked = _KINDS[needs]
    if needs == "answer" and _is_numeric(path, name):
        grader, ready = numeric.grade_number, lambda: None
    domain = str(first.get("domain") or domain)

    def row(source: Mapping[str, Any], number: int) -> Row:
        if needs not in source:
            if any(field in source for field in _KINDS):
                raise ValueError(f"the first row has `{needs}`, and this row another grader's field. {_APART}")
            raise ValueError(f"it has no {needs}")
        if (source.get("domain") or domain) != domain:
            raise ValueError(f"the first row has domain {domain!r}, and this row another. {_APART}")
        if not isinstance(source.get("prompt"), list):
            prompt: Any = text_of(source, "prompt")
        elif reason := malformed(prompt := source["prompt"]):
            raise ValueError(f"its prompt {str(prompt)[:60]}: {reason}")
        return {**source, "id": text_of(source, "id"), "prompt": prompt, **checked(source)}

    return Benchmark(name=name, domain=domain, row=row, grader=grader, ready=ready, path=path)
