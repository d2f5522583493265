"""LiveCodeBench: contest problems, graded by hidden tests. `lcb_v5` and `lcb_v6` are what those releases added (167 and
175 problems); `lcb_release_v5` and `lcb_release_v6` hold everything up to them (880 and 1,055)."""

import base64
import io
import json
import pickle
import zlib
from collections.abc import Mapping
from typing import Any

from trustmopd.evaluation.benchmark import Benchmark, Grade, Row, text_of
from trustmopd.evaluation.graders import programs
from trustmopd.evaluation.sandbox.sandbox import check_sandbox

# LiveCodeBench's own wording (MIT licence): scores depend on it.
_SYSTEM = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests."
)
_WITH_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your code within "
    "delimiters."
)
_WITHOUT_STARTER = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on the sample "
    "inputs). Enclose your code within delimiters as follows. Ensure that when the python program runs, it reads the "
    "inputs, runs the algorithm and writes output to STDOUT."
)
_MOST_TESTS = 2**30  # bytes of one problem's tests, unpacked


def _row(source: Mapping[str, Any], number: int) -> Row:
    for field in ("public_test_cases", "private_test_cases", "metadata"):
        text_of(source, field)  # unpacked when it is graded: some problems have 100 MB of tests
    starter = source.get("starter_code") or ""
    form = _WITH_STARTER if starter else _WITHOUT_STARTER
    prompt = (
        f"### Question:\n{text_of(source, 'question_content')}\n\n### Format: {form}\n"
        f"```python\n{starter or '# YOUR CODE HERE'}\n```\n\n### Answer: (use the provided format with backticks)\n\n"
    )
    return {**source, "id": text_of(source, "question_id"), "prompt": prompt}


def _grade(row: Row, response: str) -> Grade:
    tests = [*json.loads(row["public_test_cases"]), *unpack_tests(row["private_test_cases"])]
    return programs.grade_tests(
        programs.last_code_block(response),
        [test["input"] for test in tests],
        [test["output"] for test in tests],
        json.loads(row["metadata"]).get("func_name"),
    )


def unpack_tests(packed: str) -> list[dict[str, str]]:
    """Private tests are JSON, or base64 of zlib of a pickle of JSON text. A pickle can name any function to call:
    this one is read by an unpickler that knows none."""
    try:
        return json.loads(packed)
    except ValueError:
        pass
    unzip = zlib.decompressobj()
    data = unzip.decompress(base64.b64decode(packed), _MOST_TESTS)
    if unzip.unconsumed_tail:
        raise ValueError(f"private tests of more than {_MOST_TESTS} bytes")
    return json.loads(_TextUnpickler(io.BytesIO(data)).load())


class _TextUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"private tests want {module}.{name}, and may hold text alone")


BENCHMARKS = [
    Benchmark(
        name=f"lcb_{config}",
        domain="code",
        hub="lighteval/code_generation_lite",
        config=config,
        samples=5,
        system=_SYSTEM,
        row=_row,
        grader=_grade,
        ready=check_sandbox,
    )
    for config in ("v5", "v6", "release_v5", "release_v6")
]
