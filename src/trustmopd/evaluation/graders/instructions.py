"""Instruction following as IFEval defined it: every instruction of a prompt checked strictly, and loosely."""

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trustmopd.evaluation.benchmark import Benchmark, Grade, Row, Unavailable, text_of

_one_at_a_time = threading.Lock()


@contextmanager
def repeatable() -> Iterator[None]:
    """Checkers draw at random what a prompt leaves open or gets wrong (a "letter" such as #), so one response could get
    two grades. Here every grading draws the same; the caller's random state is kept."""
    with _one_at_a_time:
        state = random.getstate()
        random.seed(0)
        try:
            yield
        finally:
            random.setstate(state)


def check_instructions(source: Mapping[str, Any]) -> None:
    names, arguments = source["instruction_id_list"], source["kwargs"]
    if not isinstance(names, list) or not isinstance(arguments, list):
        raise ValueError("its instruction_id_list and its kwargs are not both lists")
    if not all(isinstance(each, Mapping) for each in arguments):
        raise ValueError("its kwargs are not a list of names with values")
    if not names or len(names) != len(arguments):
        raise ValueError(f"{len(names)} instructions with {len(arguments)} sets of arguments")


def row(source: Mapping[str, Any], number: int) -> Row:
    check_instructions(source)
    return {**source, "id": text_of(source, "id", "key"), "prompt": text_of(source, "prompt")}


def benchmark(name: str, hub: str, grader: Callable[[Row, str], Grade], ready: Callable[[], None]) -> Benchmark:
    return Benchmark(name=name, domain="if", hub=hub, split="train", row=row, grader=grader, ready=ready)


def grade_of(response: str, strict: list[bool], loose: list[bool]) -> Grade:
    """The score is prompt-level strict: every instruction followed, in the response as it stands."""
    return Grade(
        float(all(strict)),
        {
            "extracted": response,
            "prompt_strict": all(strict),
            "prompt_loose": all(loose),
            "instruction_strict": strict,
            "instruction_loose": loose,
        },
    )


def loose_variants(response: str) -> list[str]:
    """The response, and the same without asterisks, without its first line, its last, or both."""
    lines = response.split("\n")
    cut = [response, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(text.replace("*", "") for text in cut)]


def check_nltk_data(*resources: str) -> None:
    """NLTK's data are not in its package. Without them checkers raise, or try to go online."""
    import nltk

    def is_here(resource: str) -> bool:
        try:
            return bool(nltk.data.find(resource))
        except LookupError:
            return False

    if missing := [resource.rpartition("/")[2] for resource in resources if not is_here(resource)]:
        raise Unavailable(
            f"grading instructions needs NLTK's data {', '.join(missing)}, which are not here. Fetch them once: python "
            f"-m nltk.downloader {' '.join(missing)}; or set NLTK_DATA to a folder that has them."
        )
