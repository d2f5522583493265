"""IFEval: 541 prompts with instructions that a program can check, by lm-eval's checkers."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from typing import Any

from trustmopd.evaluation.benchmark import Grade, Row, Unavailable
from trustmopd.evaluation.graders import instructions


def _grade(row: Row, response: str) -> Grade:
    checkers = _checkers()
    with instructions.repeatable():
        found = checkers.process_results({"key": row["id"], **row}, [response])
    return instructions.grade_of(response, found["inst_level_strict_acc"], found["inst_level_loose_acc"])


def check_known(source: Mapping[str, Any]) -> None:
    """Whether there is a checker for every instruction, and it takes the arguments. Without the library
    nothing is checked here: `ready` names what is missing."""
    try:
        known = _checkers().instructions_registry.INSTRUCTION_DICT
    except Unavailable:
        return
    for name, arguments in zip(source["instruction_id_list"], source["kwargs"], strict=True):
        if name not in known:
            close = get_close_matches(str(name), known, 1, 0)
            raise ValueError(f"IFEval has no instruction {name!r}; the nearest is {close[0]!r}")
        try:
            with instructions.repeatable():
                known[name](name).build_description(**{key: value for key, value in arguments.items() if value})
        except Exception as error:  # a checker's own ways to refuse arguments
            raise ValueError(f"{name} does not take {arguments!r:.80} ({error})") from None


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


BENCHMARKS = [instructions.benchmark("ifeval", "google/IFEval", _grade, _ready)]
