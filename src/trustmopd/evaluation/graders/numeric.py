"""The number that a response gives, read as lm-eval reads GSM8K. Plain functions without a library, fast enough for
rewards."""

import re
from decimal import Decimal

from trustmopd.evaluation.benchmark import Grade, Row

#: lm-eval 0.4.13, tasks/gsm8k/gsm8k-cot-zeroshot.yaml. The last match counts.
FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
#: From the same file. The first match counts. The last point is any character, as there.
STRICT = re.compile(r"The answer is (\-?[0-9\.\,]+).")
#: With an exponent, as Python writes a row's 0.00001.
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]{1,3})?")


def grade_number(row: Row, response: str) -> Grade:
    """Passed if flexible-extract finds a number equal to `row["answer"]`; whether strict-match does is in `details`."""
    expected = number_of(str(row["answer"]))
    if expected is None:
        raise ValueError(f"the reference {row['answer']!r:.60} is not a number, so nothing can equal it. Fix this row.")
    given, strict = flexible_extract(response), strict_extract(response)
    return Grade(
        float(given is not None and number_of(given) == expected),
        {"extracted": given, "strict_match": strict is not None and number_of(strict) == expected},
    )


def flexible_extract(response: str) -> str | None:
    """The last number, wherever it stands."""
    found = FLEXIBLE.findall(response)
    return (found[-1][0] or found[-1][1]) if found else None


def strict_extract(response: str) -> str | None:
    """The number of the first "The answer is …"."""
    found = STRICT.search(response)
    return found[1] if found else None


def number_of(text: str) -> Decimal | None:
    """The value of text that is a number once lm-eval's `regexes_to_ignore` are gone: commas, dollar signs, what stands
    before ####, a full stop at the end."""
    left = text.rpartition("####")[2].replace(",", "").replace("$", "").strip().removesuffix(".")
    return Decimal(left) if _NUMBER.fullmatch(left) else None
