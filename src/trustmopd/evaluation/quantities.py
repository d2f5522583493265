"""The words behind a number: a unit, which is left out, or a part of the value, which is not."""

import re
from fractions import Fraction
from math import prod

NUMBER = re.compile(r"(?:(?<!\d)[-−])?\d(?:[\d,]*\d)?(?:\.\d+)?(?:/\d+)?")

_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
#: These change the value too.
_OPERATIONS = {"pi", "squared", "cubed", "factorial", "tenths", "hundredths", "thousandths"}
#: Units (and a pronoun); any other single letter is an unknown, as in 18 x, or a scale, as in 18K.
_UNIT_LETTERS = frozenset("mghsLI")

_SPACES = re.compile(r"\\[,;:! ]|~|\\q?quad\b|\\hspace\*?\{[^{}]*\}")
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)?|math(?:rm|bf|it|sf|tt)|mbox)\s*\{([^{}]*)\}")
#: x = 18 dozen eggs; 18 km/h; 18 cm^2; 18%
_WITH_WORDS = re.compile(
    r"(.*=)?(.*[\d)}])(?:\s*(?P<percent>\\?%)|[\s-]+(?P<words>[A-Za-z][A-Za-z '’/-]*)(?:\^\{?[23]\}?|[²³])?)\s*\.?",
    re.DOTALL,
)
#: From here on it is a unit's denominator: 18 dollars a dozen are 18 dollars.
_PER = re.compile(r"\b(?:per|each|every|an?)\b|/")
_NEXT_WORD = re.compile(
    r"[^\S\n]*-?(\\?%|π|\\pi\b|and (?:a|one)[ -](?:half|third|quarter)|per cent|[A-Za-z]+(?:[-'’/][A-Za-z]+)*)"
)
_LONGEST = 1000  # characters of an answer that is read for words: matching takes their square
_JOINED = re.compile(r"(?<=\d)\\[,!](?=\d)")  # 1\,000


def number_of(text: str, percent: bool = False) -> Fraction | None:
    """The value of text that is a number, with a unit or a scale behind it, and nothing else."""
    _, quantity, scale = _split(text, percent)
    number = _plain(quantity)
    return None if number is None else number * scale


def as_latex(text: str, percent: bool = False) -> str:
    """The answer with its words turned into mathematics: math-verify drops what \\text{…} holds, and would take
    `18\\text{ million}` for 18. It takes 18% for 18 and for 0.18: `percent` leaves that so, else it is 0.18."""
    start, quantity, scale = _split(text, percent)
    return quantity if scale == 1 else rf"{start}({quantity}) \cdot \frac{{{scale.numerator}}}{{{scale.denominator}}}"


def with_its_words(text: str, number: re.Match[str]) -> str:
    """A number in prose with the word behind it, if that changes its value: "18 million" of "18 million dollars"."""
    found = _NEXT_WORD.match(bare(re.sub(r"[*$]|\\[()]", "", text[number.end() : number.end() + 100])))
    return f"{number[0]} {found[1]}" if found and _scale(found[1]) != 1 else number[0]


def bare(text: str) -> str:
    """Without spacing commands, and with what stands in \\text{…} and its like in the open."""
    text = _SPACES.sub(" ", _JOINED.sub("", text))
    while (opened := _WRAPPED.sub(r" \1 ", text)) != text:
        text = opened
    return text.strip(" $")


def _split(text: str, percent: bool) -> tuple[str, str, Fraction]:
    """What leads to the quantity (x =), the quantity, and by what its words multiply it. Words that are no scale stay
    in the quantity, unless they are the unit of a plain number: of an expression they may be a part."""
    text = _JOINED.sub("", text).strip()
    opened = bare(text[:_LONGEST])
    found = _WITH_WORDS.fullmatch(opened)
    if found is None or len(text) > _LONGEST:
        return "", text, Fraction(1)
    start, quantity = found[1] or "", found[2]
    scale = _scale(found["words"] or "%")
    if scale is None:
        return "", re.sub(r"\bpi\b", r"\\pi", opened), Fraction(1)
    if scale == 1:
        return "", text if _plain(quantity) is None else quantity, scale
    if percent and scale == Fraction(1, 100):
        return "", rf"{start}{quantity}\%", Fraction(1)
    return start, quantity, scale


def _scale(words: str) -> Fraction | None:
    """By what the words behind a number multiply it: 1 for a unit, None for what is no factor."""
    if re.match(r"\\?%|per ?cent\b", words, re.IGNORECASE):
        return Fraction(1, 100)
    if words.startswith("and "):  # 18 and a half
        return None
    counted = _PER.split(words)[0].split()
    if counted and len(counted[0]) == 1:
        return Fraction(1) if counted[0] in _UNIT_LETTERS else None
    parts = [part.lower().lstrip("\\") for word in counted for part in word.split("-")]
    if _OPERATIONS.intersection(parts):
        return None
    return Fraction(prod(_SCALES.get(part.removesuffix("s"), 1) for part in parts))


def _plain(text: str) -> Fraction | None:
    """Leading zeros are of no account, 1,070 is 1070."""
    text = text.strip(" $").removeprefix("\\$").replace("−", "-").removeprefix("+")
    if not re.fullmatch(r"-?(\d{1,3}(,\d{3})+|\d{1,40})(\.\d{0,40})?", text):
        return None
    return Fraction(text.replace(",", "").removesuffix("."))
