"""The words behind a number: a unit, which is left out, or a part of the value, which is not."""

import re
from collections.abc import Collection
from fractions import Fraction
from math import prod

NUMBER = re.compile(r"(?:(?<!\d)[-−])?\d(?:[\d,]*\d)?(?:\.\d+)?(?:/\d+)?")

_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ANY_SCALE = "|".join(_SCALES)
_ASKED = re.compile(rf"\bhow many ({_ANY_SCALE})s?\b|\bin ({_ANY_SCALE})s\b", re.IGNORECASE)
PERCENT = "%"
#: These change the value too, in prose and elsewhere.
_OPERATION = re.compile("pi|squared|cubed|factorial|tenths|hundredths|thousandths|minus|plus")
#: Words of mathematics, which are no unit either. In prose they are words: "18 over two weeks".
_MATHEMATICS = re.compile(
    _OPERATION.pattern + "|over|divided|multiplied|mod|choose|exp|sqrt|log|ln|(?:arc)?(?:sin|cos|tan|cot|csc)h?"
    "|infinity|alpha|beta|gamma|delta|theta|lambda|sigma|omega"
)
#: Units (and a pronoun); any other single letter is an unknown, as in 18 x, or a scale, as in 18K.
_UNIT_LETTERS = frozenset("mghsLI")
#: Letters that are no unit in \text{…} either, where all others are: 18\text{ N}.
_NO_UNIT_LETTERS = "KMBxyz"
#: Short words that are no product of unknowns, as xy would be: units, and what stands between words.
_SHORT = re.compile(
    "[mckn]m|ft|yds?|mi|sq|cc|ml|pts?|qt|oz|lbs?|[mk]g|ms|hrs?|mph|kmh|kph|[kmg]?hz|kwh?|[kmgt]b|k?pa|[ap]m"
    "|of|in|on|to|by|at|as"
)

_SPACES = re.compile(r"\\[,;:! ]|~|\\q?quad\b|\\hspace\*?\{[^{}]*\}")
_SIGNS = re.compile(r"(?<=\d)\\[,!](?=\d)|[€£¥]|°(?:\s?[CF]\b)?")  # 1\,000; €18; 18 °C
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)?|math(?:rm|bf|it|sf|tt)|mbox)\s*\{([^{}]*)\}")
_UNIT_LETTER = re.compile(
    rf"\\(?:text|mathrm)\s*\{{\s*(?![{_NO_UNIT_LETTERS}])[A-Za-z]\s*\}}(?:\^\{{?[23]\}}?|[²³])?(?!\s*[/\\])"
)
_WORD = r"[A-Za-z]+(?:(?:['’-]|\\?&)[A-Za-z]+)*['’]?"
#: x = 18 dozen eggs; 18 km/h; 18 cm^2; 18-inch; 18%. A hyphen beside a space is a minus.
_WITH_WORDS = re.compile(
    rf"(.*=)?(.*[\d)}}])(?:\s*(?P<percent>\\?%)"
    rf"|(?:\s+|(?P<hyphen>(?<=\d)-))(?P<words>{_WORD}(?:(?:\s+|\s*/\s*){_WORD})*)(?:\^\{{?[23]\}}?|[²³])?)\s*\.?",
    re.DOTALL,
)
#: From here on it is a unit's denominator: 18 dollars a dozen are 18 dollars.
_PER = re.compile(r"\b(?:per|each|every|an?)\b|/")
_NEXT_WORD = re.compile(
    rf"[^\S\n]*-?(\\?%|π|\\pi\b|and (?:a|one)[ -](?:half|third|quarter)|per cent|{_WORD}(?:/{_WORD})*)"
)
_LONGEST = 1000  # characters of an answer that is read for words: matching takes their square


def scales_asked_for(question: str) -> frozenset[str]:
    """Where it asks how many dozens, 7 dozen are 7: the scales (and PERCENT) that an answer may leave out or say."""
    named = {part.lower() for found in _ASKED.findall(question) for part in found if part}
    return frozenset(named | ({PERCENT} if re.search("percent|per cent|%", question, re.IGNORECASE) else set()))


def number_of(text: str, leave: Collection[str] = (), *, strict: bool = False) -> Fraction | None:
    """The value of text that is a number, with a unit or a scale behind it, and nothing else. The scales of `leave` are
    taken for units; `strict` takes fewer words for units, as a reference wants: it may be algebra."""
    _, quantity, scale = _split(text, leave, strict)
    number = _plain(quantity)
    return None if number is None else number * scale


def as_latex(text: str, leave: Collection[str] = (), *, strict: bool = False) -> str:
    """The answer with its words turned into mathematics: math-verify drops what \\text{…} holds, and would take
    `18\\text{ million}` for 18, and 18% for 18 and for 0.18."""
    start, quantity, scale = _split(text, leave, strict)
    if scale == 1:
        return start + quantity
    return rf"{start}({quantity}) \cdot \frac{{{scale.numerator}}}{{{scale.denominator}}}"


def with_its_words(text: str, number: re.Match[str]) -> str:
    """A number in prose with the word behind it, if that changes its value: "18 million" of "18 million dollars"."""
    found = _NEXT_WORD.match(bare(re.sub(r"[*$]|\\[()]", "", text[number.end() : number.end() + 100])))
    return f"{number[0]} {found[1]}" if found and _changes(found[1]) else number[0]


def bare(text: str) -> str:
    """Without spacing commands, signs of currency and units of one letter, and with what stands in \\text{…} and its
    like in the open."""
    return _unwrapped(_UNIT_LETTER.sub(" ", _SPACES.sub(" ", _SIGNS.sub("", text))), r" \1 ").strip(" $")


def _unwrapped(text: str, by: str) -> str:
    while (opened := _WRAPPED.sub(by, text)) != text:
        text = opened
    return text


def _changes(word: str) -> bool:
    """Whether a word of prose changes the number before it."""
    if len(word) == 1:
        return word not in _UNIT_LETTERS
    if re.match(r"\\?%|\\pi|per ?cent\b|and ", word, re.IGNORECASE):
        return True
    return bool(_scales(word)) or any(map(_OPERATION.fullmatch, word.lower().split("-")))


def _split(text: str, leave: Collection[str], strict: bool) -> tuple[str, str, Fraction]:
    """What leads to the quantity (x =), the quantity, and by what its words multiply it. Words that are no scale stay
    in the quantity, unless they are the unit of a plain number: of an expression they may be a part."""
    text = _SIGNS.sub("", text).strip()
    opened = bare(text[:_LONGEST])
    found = _WITH_WORDS.fullmatch(opened)
    if found is None or len(text) > _LONGEST:
        return "", text, Fraction(1)
    start, quantity, words = found[1] or "", found[2], found["words"] or ""
    if found["percent"] or re.match(r"per ?cent\b", words, re.IGNORECASE):
        return start, quantity, Fraction(1, 1 if PERCENT in leave else 100)
    loose = set(re.findall("[A-Za-z]+", _unwrapped(text, " ")))
    if not _counts(words, loose, 4 if strict or found["hyphen"] else 3):
        return "", re.sub(r"\bpi\b", r"\\pi", opened), Fraction(1)
    scales = _scales(_PER.split(words)[0])
    if not scales:
        return "", text if _plain(quantity) is None else quantity, Fraction(1)
    return start, quantity, Fraction(prod(_SCALES[scale] for scale in scales if scale not in leave))


def _counts(words: str, loose: set[str], shortest: int) -> bool:
    """Whether the words are units and scales, and no algebra, of which those outside \\text{…} (`loose`) may be."""
    if re.match("(?:or|and)\\b", words, re.IGNORECASE):
        return False
    each = [word for part in _PER.split(words) for word in part.split()]
    return all(
        _is_unit(word, not loose.isdisjoint(re.findall("[A-Za-z]+", word)), shortest, first=number == 0)
        for number, word in enumerate(each)
    )


def _is_unit(word: str, loose: bool, shortest: int, first: bool) -> bool:
    lower = word.lower()
    if any(map(_MATHEMATICS.fullmatch, lower.split("-"))):
        return False
    if len(word) == 1:
        allowed = word in _UNIT_LETTERS or (word.isupper() and not first)  # 18 grade A eggs
        return allowed if loose else word not in _NO_UNIT_LETTERS
    if not loose or "&" in word or _SHORT.fullmatch(lower):
        return True
    return len(word) >= shortest and bool(re.search("[aeiou]", lower))


def _scales(words: str) -> list[str]:
    return [part.removesuffix("s") for part in re.findall("[a-z]+", words.lower()) if part.removesuffix("s") in _SCALES]


def _plain(text: str) -> Fraction | None:
    """Leading zeros are of no account, 1,070 is 1070."""
    text = text.strip(" $").removeprefix("\\$").replace("−", "-").removeprefix("+")
    if not re.fullmatch(r"-?(\d{1,3}(,\d{3})+|\d{1,40})(\.\d{0,40})?", text):
        return None
    return Fraction(text.replace(",", "").removesuffix("."))
