"""IFBench: 300 prompts with 58 kinds of instruction that IFEval has not, by the checkers of its official package."""

from functools import cache
from importlib.util import find_spec
from typing import Any

from trustmopd.evaluation.benchmark import Grade, Row, Unavailable
from trustmopd.evaluation.graders import instructions


def _grade(row: Row, response: str) -> Grade:
    variants = instructions.loose_variants(response)
    strict, loose, errors = [], [], []
    for name, arguments in zip(row["instruction_id_list"], row["kwargs"], strict=True):
        try:
            with instructions.repeatable():
                checker = _checker(name, arguments, row["prompt"])
                verdicts = _follows(checker, response), any(_follows(checker, variant) for variant in variants)
        except Unavailable:
            raise
        except Exception as error:  # some of its checkers raise on some responses; the others still count
            errors.append(f"{name}: {type(error).__name__}: {str(error).strip():.200}")
            verdicts = False, False
        strict.append(verdicts[0])
        loose.append(verdicts[1])
    grade = instructions.grade_of(response, strict, loose)
    return Grade(grade.score, {**grade.details, "error": "; ".join(errors)}) if errors else grade


def _follows(checker: Any, response: str) -> bool:
    return bool(response.strip() and checker.check_following(response))


def _checker(name: str, arguments: dict[str, Any], prompt: str) -> Any:
    checker = _registry()[name](name)
    checker.build_description(**{key: value for key, value in arguments.items() if value is not None})
    if "prompt" in (checker.get_instruction_args() or {}):
        checker.build_description(prompt=prompt)
    return checker


@cache
def _registry() -> dict[str, Any]:
    _installed()
    import langdetect
    from ifbench.instructions_registry import INSTRUCTION_DICT

    langdetect.DetectorFactory.seed = 0
    return INSTRUCTION_DICT


def _installed() -> None:
    if find_spec("ifbench") is None:
        raise Unavailable(
            "grading IFBench needs its official package, which is on GitHub alone. Install it: "
            "pip install git+https://github.com/allenai/IFBench."
        )


def _ready() -> None:
    _installed()
    tagger = "taggers/averaged_perceptron_tagger_eng"
    instructions.check_nltk_data("tokenizers/punkt_tab", "corpora/stopwords", tagger)


BENCHMARKS = [instructions.benchmark("ifbench", "allenai/IFBench_test", _grade, _ready)]
