"""A user's own set: rows with a `prompt` and the fields of a grader."""

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trustmopd.evaluation.benchmark import Benchmark, Grade, Row, read_local, text_of
from trustmopd.evaluation.benchmarks import ifeval, module_at
from trustmopd.evaluation.graders import answers, instructions, mathematics, programs
from trustmopd.evaluation.graders.reasoning import strip_reasoning
from trustmopd.evaluation.sandbox.sandbox import check_sandbox
from trustmopd.prompts.reading.messages import malformed, plain
from trustmopd.recipe.names import GRADERS
from trustmopd.util.messages import choose_from

_APART = "Give such rows a file of their own"


def _answer(source: Mapping[str, Any]) -> str:
    """The text after ####, as in GSM8K, or all of it."""
    return text_of({"answer": text_of(source, "answer").rpartition("####")[2]}, "answer").strip()


def _graded_by(grader: str, source: Mapping[str, Any]) -> Mapping[str, Any]:
    row = {"answer": _answer(source), "grader": grader}
    if grader not in GRADERS:
        raise ValueError(f"grader = {grader!r:.60} is unknown. {choose_from(GRADERS, grader)}")
    try:
        answers.grade_by_name(row, "")
    except (ValueError, re.error) as error:
        raise ValueError(f"{grader} cannot read answer = {row['answer']!r:.60} ({error})") from None
    return row


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
    """A kind of set: its domain, unless the rows say another, its grader, what of a row is checked, and made ready for
    the grader, and what the record calls the grader."""

    domain: str
    grader: Callable[[Row, str], Grade]
    ready: Callable[[], None]
    checked: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    graders: str


(_IFEVAL,) = ifeval.BENCHMARKS
#: By the field that a set has. A set of answers has a kind of its own.
_KINDS = {
    "instruction_id_list": _Kind("if", _IFEVAL.grader, _IFEVAL.ready, _instructions, "instructions"),
    "answer": None,
    "tests": _Kind("code", programs.grade_asserts, check_sandbox, _tests, "tests"),
    "input_output": _Kind("code", programs.grade_programs, check_sandbox, _input_output, "programs"),
}


def _of_answers(path: Path, name: str, grader: Any) -> _Kind:
    """By the grader given, that of each row, or the form of the answers; what is not plain numbers is told."""

    def row(source: Mapping[str, Any], number: int) -> Row:
        return {"id": str(number), "answer": _answer(source), "grader": grader or source.get("grader")}

    rows = read_local(path, row, name)
    default = answers.default_graders([row["answer"] for row in rows if not row["grader"]])
    if others := [answer for answer, chosen in default.items() if chosen != "number"]:
        warnings.warn(
            f"benchmark {name}: answers such as {others[0]!r:.60} are graded by {default[others[0]]}, by their form: "
            f"{answers.BY_NAME[default[others[0]]].__doc__} Rows may name another `grader`, and a recipe may, as "
            f"{{path: {path.name}, grader: NAME}}: {', '.join(GRADERS)}, or FILE.py:FUNCTION.",
            stacklevel=4,
        )
    used = sorted({str(row["grader"] or default[row["answer"]]) for row in rows})

    def checked(source: Mapping[str, Any]) -> Mapping[str, Any]:
        return _graded_by(grader or source.get("grader") or default.get(_answer(source), "exact"), source)

    domain = "math" if {*used} <= {"number", "math"} else name
    ready = mathematics.ready if "math" in used else lambda: None
    return _Kind(domain, answers.grade_by_name, ready, checked, ", ".join(used))


def is_graded(row: Mapping[str, Any]) -> bool:
    """Whether it has a grader's fields. Parquet has the columns of all rows, empty in some."""
    return any(row.get(field) is not None for field in _KINDS)


def grade_by_fields(row: Row, response: str) -> Grade:
    """A row of a set with several kinds, such as a prompt set: each by its own fields."""
    response = strip_reasoning(response)
    kind = _KINDS[next(field for field in _KINDS if row.get(field) is not None)]
    if kind is not None:
        return kind.grader({**row, **kind.checked(row)}, response)
    answer = _answer(row)
    grader = row.get("grader") or answers.default_graders([answer])[answer]
    return answers.grade_by_name(_graded_by(grader, row), response)


def _of_function(name: str, grader: Any) -> _Kind:
    place, _, own = grader.rpartition(":") if isinstance(grader, str) else ("", "", "")
    function = getattr(module_at(place), own, None) if isinstance(grader, str) else grader
    if not callable(function):
        raise ValueError(f"{place} has no function {own!r}. Define it there, or name another.")

    def graded(row: Row, response: str) -> Grade:
        grade = function(row, response)
        return grade if isinstance(grade, Grade) else Grade(float(grade))

    return _Kind(name, graded, lambda: None, lambda source: {}, str(grader) if place else function.__qualname__)


def own_benchmark(path: str | Path, grader: str | Callable[[Row, str], Any] | None = None) -> Benchmark:
    """Of a file of rows. The grader follows from the first row's fields, and all rows must have them, unless it is
    given: a name, `FILE.py:FUNCTION`, or a function of row and response that gives a `Grade`, a number or a truth
    value. `domain` (of the first row) says which domain's mean the set counts in."""
    path = Path(path)
    name = path.name.partition(".")[0]
    first = read_local(path, lambda source, number: {"id": str(number), "prompt": "", **source}, name, limit=1)[0]
    needs = "answer" if grader in GRADERS else next((field for field in _KINDS if not grader and field in first), None)
    if needs is None and not grader:
        raise ValueError(
            f"{path}: its first row has {', '.join(first)}, which no grader reads. Give every row an `answer`, "
            "`tests` (asserts), `input_output` (inputs and outputs) or `instruction_id_list` with `kwargs`."
        )
    kind = _of_function(name, grader) if needs is None else _KINDS[needs] or _of_answers(path, name, grader)
    domain = str(first.get("domain") or kind.domain)

    def row(source: Mapping[str, Any], number: int) -> Row:
        if needs and needs not in source:
            if any(field in source for field in _KINDS):
                raise ValueError(f"the first row has `{needs}`, and this row another grader's field. {_APART}")
            raise ValueError(f"it has no {needs}")
        if (source.get("domain") or domain) != domain:
            raise ValueError(f"the first row has domain {domain!r}, and this row another. {_APART}")
        if not isinstance(source.get("prompt"), list):
            prompt: Any = text_of(source, "prompt")
        elif reason := malformed(source["prompt"]):
            raise ValueError(f"its prompt {str(source['prompt'])[:60]}: {reason}")
        else:
            prompt = plain(source["prompt"])
        for field, kinds in (("tools", list | None), ("chat_template_kwargs", dict | None)):
            if not isinstance(source.get(field), kinds):
                raise ValueError(f"{field} = {source[field]!r:.60}: a list of tools, or a mapping, is needed")
        id = str(number) if source.get("id") is None else text_of(source, "id")
        return {**source, "id": id, "prompt": prompt, **kind.checked(source)}

    return Benchmark(
        name=name, domain=domain, row=row, grader=kind.grader, ready=kind.ready, path=path, graders=kind.graders
    )
