"""Instruction following as IFEval defined it: every instruction of a prompt checked strictly, and loosely."""

from collections.abc import Mapping
from typing import Any

from trustmopd.evaluation.benchmark import Grade, Unavailable
from trustmopd.evaluation.rows import Row, text_of


def row(source: Mapping[str, Any], number: int) -> Row:
    names, arguments = source["instruction_id_list"], source["kwargs"]
    if not names or len(names) != len(arguments):
        raise ValueError(f"{len(names)} instructions with {len(arguments)} sets of arguments")
    return {**source, "id": text_of(source, "id", "key"), "prompt": text_of(source, "prompt")}


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


def check_tokenizer(*resources: str) -> None:
    """NLTK's data are not in its package, and checkers without them raise, or try to go online."""
    import nltk

    for resource in resources:
        try:
            nltk.data.find(resource)
        except LookupError:
            name = resource.rpartition("/")[2]
            raise Unavailable(
                f"grading instructions needs NLTK's {name}, and it is not here. Fetch it once: python -m "
                f"nltk.downloader {name}; or set NLTK_DATA to a folder that has {resource}."
            ) from None
