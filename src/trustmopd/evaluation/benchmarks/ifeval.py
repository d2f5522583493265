"""IFEval: 541 prompts with instructions that a program can check, by lm-eval's checkers."""

from functools import cache
from importlib.util import find_spec
from typing import Any

from trustmopd.evaluation import instructions
from trustmopd.evaluation.benchmark import Benchmark, Grade, Unavailable
from trustmopd.evaluation.rows import Row


def _grade(row: Row, response: str) -> Grade:
    checkers = _checkers()
    with instructions.repeatable():
        found = checkers.process_results({"key": row["id"], **row}, [response])
    return instructions.grade_of(response, found["inst_level_strict_acc"], found["inst_level_loose_acc"])


@cache
def _checkers() -> Any:
    _ready()
    import langdetect
    from lm_eval.tasks.ifeval import utils

    langdetect.DetectorFactory.seed = 0  # it guesses, otherwise differently each time
    return utils


def _ready() -> None:
    if find_spec("lm_eval") is None:
        raise Unavailable("grading IFEval needs lm-eval. Install it: pip install 'trustmopd[eval]'.")
    instructions.check_nltk_data("tokenizers/punkt_tab")


BENCHMARKS = [
    Benchmark(
        name="ifeval",
        domain="if",
        hub="google/IFEval",
        split="train",
        row=instructions.row,
        grader=_grade,
        ready=_ready,
    )
]
