"""The words behind a number: a unit, which is left out, or a part of the value, which is not."""

import re
from collections.abc import Collection
from fractions import Fraction
from math import prod

#: 18; 1,070; 1 070; .5; -$5; 1 1/2; and 3:30, which is neither 3 nor 30. A hyphen behind a word is no sign, and a point
#: there no decimal point.
NUMBER = re.compile(
    r"(?:(?<![\w)}])[-−]\\?\$?)?(?:\d+ +\d+/\d+|\d{1,3}(?: \d{3})+(?![\d-])"
    r"|(?:\d(?:[\d,]*\d)?(?:\.\d+)?|(?<![\w.])\.\d+)(?:/\d+|:\d\d?(?!\d))*)"
)

_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ANY_SCALE = "|".join(_SCALES)
_ASKED = re.compile(rf"\bhow many ({_ANY_SCALE})s?\b|\bin ({_ANY_SCALE})s\b", re.IGNORECASE)
PERCENT = "%"
#: These change the value too, in prose and elsewhere.
_OPERATION = re.compile("pi|squared|cubed|factorial|tenths|hundredths|thousandths|minus|plus|sqrt|ln|sin|cos")
#: Words of mathematics, which are no unit either. In prose they are words: "18 over two weeks".
_MATHEMATICS = re.compile(
    _OPERATION.pattern + "|over|divided|multiplied|mod|choose|exp|log|(?:arc)?(?:sin|cos|tan|cot|csc)h?"
    "|infinity|alpha|beta|gamma|delta|theta|lambda|sigma|omega"
)
#: Units; any other single letter is an unknown, as in 18 x, or a scale, as in 18K.
_UNIT_LETTERS = frozenset("mghsL")
#: And in prose a word: 18 a day.
_ENGLISH_LETTERS = frozenset("aI")
#: Letters that are no unit in \text{…} either, where all others are: 18\text{ N}.
_NO_UNIT_LETTERS = "KMBxyz"
#: Short words that are no product of unknowns, as xy would be: units, and what stands between other words.
_SHORT = re.compile(
    "[mcdkn]m|ft|yds?|mi|sq|cc|ml|pts?|qt|gal|oz|lbs?|[mk]g|gm|ms|sec|min|hrs?|day|yrs?|deg|mph|kmh|kph|[kmg]?hz|kwh?"
    "|[kmgt]b|k?pa|[ap]m|in"
)
_BETWEEN = re.compile("of|on|to|by|at|as")

_SPACES = re.compile(
    r"\\[,;:! ]|~|\\q?quad\b|\\hspace\*?\{[^{}]*\}|\\(?:blacksquare|square|Box|checkmark|qed)\b"  # and ends of proofs
)
#: 1\,000; €18; Rs 18; 18 °C; 7 p.m.
_SIGNS = re.compile(
    r"(?<=\d)\\[,!](?=\d)|[€£¥]|\b(?:USD?|EUR|GBP|Rs\.?)\s*(?=\\?\$?\d)|\b[aApP]\.\s?[mM]\b\.?"
    r"|(?:°|\\degree\b|\^\{?\\circ\}?)(?:\s?[CF]\b)?"
)
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)?|math(?:rm|bf|it|sf|tt)|mbox|boldsymbol)\s*\{([^{}]*)\}")
_UNIT_LETTER = re.compile(
    rf"\\(?:text|mathrm)\s*\{{\s*(?![{_NO_UNIT_LETTERS}])[A-Za-z]\s*\}}(?:\^\{{?[23]\}}?|[²³])?(?!\s*[/\\])"
)
_WORD = r"[A-Za-z]+(?:(?:['’-]|\\?&)[A-Za-z]+)*['’]?"
#: x = 18 dozen eggs; 18cm; 18/hour; 18 cm^2; 18-inch; 18%. A hyphen beside a space is a minus.
_WITH_WORDS = re.compile(
    rf"(.*(?<![<>!])=)?(.*(?:[\d)}}]|\\pi\b|π))(?:\s*(?P<percent>\\?%)"
    rf"|(?P<gap>\s*|(?<=\d)-)(?P<words>(?:/\s*(?=[A-Za-z]{{2}}))?{_WORD}(?:(?:\.?\s+|\s*/\s*){_WORD})*)"
    r"(?:\^\{?[23]\}?|[²³])?)\s*\.?",
    re.DOTALL,
)
#: From here on it is a unit's denominator: 18 dollars a dozen are 18 dollars. At the end, a is an unknown.
_PER = re.compile(r"\b(?:per|each|every|an?(?=\s))\b|/")
#: math-verify drops a word at the end if it is on its list of units, which has t, c, d and ab; not so in braces, where
#: i would be no imaginary unit.
_LAST_WORD = re.compile(r"(?<=[\d}\s])(?!i\s*$)([A-Za-z]+)\s*$")
_NEXT_WORD = re.compile(
    rf"[^\S\n]*-?(\\?%|π|\\pi\b|and (?:a|one)[ -](?:half|third|quarter)|per cent|{_WORD}(?:/{_WORD})*)"
)
_PLAIN = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<whole>\d{1,40})\s+(?=\d+/))?"
    r"(?P<number>(?=\.?\d)(?:\d{1,3}(?:[,\s]\d{3})+|\d{0,40})(?:\.\d{0,40})?)(?:/(?P<below>\d{1,40}))?"
)
_HALVES = str.maketrans({"½": " 1/2", "⅓": " 1/3", "⅔": " 2/3", "¼": " 1/4", "¾": " 3/4"})
_NEGATIVE = re.compile(r"(?<!\d )\b(?:minus|negative)\s+(?=\$?[\d.])", re.IGNORECASE)
#: math-verify takes "> 18" for 18, and not "x > 18".
_BOUND = re.compile(r"^\s*(?=[<>≤≥]|\\[lg](?:t|eq?)\b)")
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
    """The answer with its words turned into mathematics, and what is no unit kept as unknowns: math-verify drops what
    \\text{…} holds, and would take `18\\text{ million}` for 18, 18% for 18 and for 0.18, and 5ab for 5."""
    start, quantity, scale = _split(text, leave, strict)
    if scale == 1:
        return _BOUND.sub("x ", start + _LAST_WORD.sub(r"{\1}", quantity))
    return rf"{start}({quantity}) \cdot \frac{{{scale.numerator}}}{{{scale.denominator}}}"


def in_figures(text: str) -> str:
    """18½ as 18 1/2, and negative 3 as -3."""
    return _NEGATIVE.sub("-", text.translate(_HALVES))


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
        return word not in _UNIT_LETTERS | _ENGLISH_LETTERS
    if re.match(r"\\?%|\\pi|per ?cent\b|and ", word, re.IGNORECASE):
        return True
    return bool(_scales(word)) or any(map(_OPERATION.fullmatch, word.lower().split("-")))


def _split(text: str, leave: Collection[str], strict: bool) -> tuple[str, str, Fraction]:
    """What leads to the quantity (x =), the quantity, and by what its words multiply it. Words that are neither unit
    nor scale stay in the quantity."""
    text = _SIGNS.sub("", text).strip()
    if len(text) > _LONGEST:
        return "", text, Fraction(1)
    opened = bare(text)
    found = _WITH_WORDS.fullmatch(opened)
    if found is None:
        return "", text if _plain(opened) is None else opened, Fraction(1)
    start, quantity, words = found[1] or "", found[2], found["words"] or ""
    if found["percent"] or re.match(r"per ?cent\b", words, re.IGNORECASE):
        return start, quantity, Fraction(1, 1 if PERCENT in leave else 100)
    loose = set(re.findall("[A-Za-z]+", _unwrapped(text, " ")))
    shortest = 4 if strict or not found["gap"].isspace() else 3
    if not _counts(words, loose, shortest, letters=_plain(quantity) is not None):
        return "", re.sub(r"\bpi\b", r"\\pi", opened), Fraction(1)
    return start, quantity, Fraction(prod(_SCALES[each] for each in _scales(_PER.split(words)[0]) if each not in leave))


def _counts(words: str, loose: set[str], shortest: int, letters: bool) -> bool:
    """Whether the words are units and scales, and no algebra, of which those outside \\text{…} (`loose`) may be, and
    single letters behind an expression are."""
    if re.match("(?:or|and)\\b", words, re.IGNORECASE) or _BETWEEN.fullmatch(words):
        return False
    each = [word for part in _PER.split(words) for word in part.replace(".", " ").split()]
    return all(
        _is_unit(word, not loose.isdisjoint(re.findall("[A-Za-z]+", word)), shortest, letters, first=number == 0)
        for number, word in enumerate(each)
    )


def _is_unit(word: str, loose: bool, shortest: int, letters: bool, first: bool) -> bool:
    lower = word.lower()
    if any(map(_MATHEMATICS.fullmatch, lower.split("-"))):
        return False
    if len(word) == 1:
        allowed = (letters and word in _UNIT_LETTERS) or (word.isupper() and not first)  # 18 grade A eggs
        return allowed if loose else word not in _NO_UNIT_LETTERS
    if not loose or "&" in word or _SHORT.fullmatch(lower) or _BETWEEN.fullmatch(lower):
        return True
    return len(word) >= shortest and bool(re.search("[aeiou]", lower))


def _scales(words: str) -> list[str]:
    return [part.removesuffix("s") for part in re.findall("[a-z]+", words.lower()) if part.removesuffix("s") in _SCALES]


def _plain(text: str) -> Fraction | None:
    """Leading zeros are of no account, 1,070 and 1 070 are 1070, .5 is a half and 1 1/2 three."""
    found = _PLAIN.fullmatch(re.sub(r"\\?\$", "", text).replace("−", "-").strip())
    if found is None or not int(found["below"] or 1):
        return None
    number = Fraction(re.sub(r"[,\s]", "", found["number"]).removesuffix("."))
    value = int(found["whole"] or 0) + number / int(found["below"] or 1)
    return -value if found["sign"] == "-" else value
