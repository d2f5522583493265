"""Graders that rows of one's own may name: how their `answer` is looked for in a response."""

import re
from collections.abc import Callable, Collection, Mapping
from itertools import chain

from trustmopd.evaluation.benchmark import Grade, Row
from trustmopd.evaluation.graders import mathematics, numeric

#: A letter of several, as in "B", "(b)" and "**B**.".
_LETTER = re.compile(r"[\W_]*([A-Za-z])[\W_]*")
_SAID = re.compile(r"(?i:answer|option|choice)(?i:\s+is)?[\s:=*_(\[]+([A-Z])\b(?!')")
_MARKED = re.compile(r"^[^\w\n]{0,9}([A-Z])[.):]|\(([A-Z])\)|^[^\w\n]{0,9}([A-Z])[^\w\n]{0,9}$", re.MULTILINE)
#: Symbols, and nothing but numbers with signs between them.
_MATHEMATICS = re.compile(r".*[\\^√π].*|[\d\s()+*/.,=-]*\d[\d\s()+*/.,=-]*", re.DOTALL)


def exact(row: Row, response: str) -> Grade:
    """Passed if the last box, or the whole response where there is none, is the answer."""
    given = mathematics.last_boxed(response) or response.strip()
    return Grade(float(_plain(given) == _plain(row["answer"])), {"extracted": given or None})


def contains(row: Row, response: str) -> Grade:
    """Passed if the answer stands in the response, not within a word; upper and lower case are the same."""
    answer = re.escape(_plain(row["answer"]).casefold())
    pattern = rf"(?:(?<!\w)|(?!\w)){answer}(?:(?!\w)|(?<!\w))"
    found = re.search(pattern, _plain(response).casefold(), re.ASCII)
    return Grade(float(found is not None), {"extracted": response.strip() or None})


def regex(row: Row, response: str) -> Grade:
    """Passed if the answer, a pattern, matches somewhere in the response."""
    found = re.search(row["answer"], response)
    return Grade(float(found is not None), {"extracted": found[0] if found else response.strip() or None})


def choice(row: Row, response: str) -> Grade:
    """Passed if the response chooses the letter: in the last box, alone, after "the answer is", or as in (B) or B."""
    text = mathematics.last_boxed(response) or response
    alone, said, marked = _LETTER.fullmatch(text), _SAID.findall(text), chain(*_MARKED.findall(text))
    letters = [alone[1]] if alone else said or list(filter(None, marked))
    given = letters[-1].upper() if letters else None
    if not (answer := _LETTER.fullmatch(row["answer"])):
        raise ValueError("it is not a letter")
    return Grade(float(given == answer[1].upper()), {"extracted": given})


#: By the names that `recipe.names.GRADERS` lists.
BY_NAME: Mapping[str, Callable[[Row, str], Grade]] = {
    **{grader.__name__: grader for grader in (exact, contains, regex, choice)},
    "number": numeric.grade_number,
    "math": mathematics.grade_answer,
}


def grade_by_name(row: Row, response: str) -> Grade:
    return BY_NAME[row["grader"]](row, response)


def default_graders(answers: Collection[str]) -> Mapping[str, str]:
    """Answer → grader. One answer in symbols makes all mathematics: a response's last number then means little."""
    if answers and all(_LETTER.fullmatch(answer) and answer.strip().isupper() for answer in answers):
        return dict.fromkeys(answers, "choice")
    numbers = {answer for answer in answers if numeric.number_of(answer) is not None}
    if any(_MATHEMATICS.fullmatch(answer) for answer in {*answers} - numbers):
        return dict.fromkeys(answers, "math")
    return {answer: "number" if answer in numbers else "exact" for answer in answers}


def _plain(text: str) -> str:
    """White space and a full stop at the end do not count."""
    return " ".join(text.split()).removesuffix(".")
