"""A user's own set: a file whose rows have `id`, `prompt` and the fields of one of the graders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trustmopd.evaluation import mathematics, programs
from trustmopd.evaluation.benchmark import Benchmark
from trustmopd.evaluation.rows import Row, read_local, text_of
from trustmopd.evaluation.sandbox import check_sandbox

#: By the field that a set has: its domain, unless the rows say another, and its grader.
_GRADERS = {
    "answer": ("math", mathematics.grade_number, mathematics.ready),
    "tests": ("code", programs.grade_asserts, check_sandbox),
    "input_output": ("code", programs.grade_programs, check_sandbox),
}


def own_benchmark(path: Path) -> Benchmark:
    """The grader follows from the first row's fields, and all rows must have them. `domain` (of the first row) says
    which domain's mean the set counts in."""
    from trustmopd.evaluation.benchmarks import get_benchmark

    name = path.name.partition(".")[0]
    first = read_local(path, lambda source, number: {"id": str(number), "prompt": "", **source}, name, limit=1)[0]
    if "instruction_id_list" in first:
        ifeval = get_benchmark("ifeval")
        domain, grader, ready, needs = "if", ifeval.grader, ifeval.ready, "instruction_id_list"
    else:
        needs = next((field for field in _GRADERS if field in first), "")
        if not needs:
            raise ValueError(
                f"{path}: its first row has {', '.join(first)}, and nothing to grade by. Give every row an `answer`, "
                "`tests` (asserts), `input_output` (inputs and outputs) or `instruction_id_list` with `kwargs`."
            )
        domain, grader, ready = _GRADERS[needs]

    def row(source: Mapping[str, Any], number: int) -> Row:
        if needs not in source:
            raise ValueError(f"it has no {needs}")
        prompt = source.get("prompt")
        tests = source.get("tests")
        return {
            **source,
            "id": text_of(source, "id"),
            "prompt": prompt if isinstance(prompt, list) and prompt else text_of(source, "prompt"),
            **({"tests": "\n".join(tests)} if isinstance(tests, list) else {}),
        }

    return Benchmark(
        name=name, domain=str(first.get("domain") or domain), row=row, grader=grader, ready=ready, path=path
    )
