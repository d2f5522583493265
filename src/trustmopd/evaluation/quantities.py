"""The words behind a number: a unit, which is left out, or a part of the value, which is not."""

import re
from collections.abc import Collection
from fractions import Fraction
from math import prod
from string import ascii_letters

#: 18; 1,070; 1 070; .5; -$5; 1 1/2; and, whole, what is neither of its numbers: 3:30, and 1.234,56. A hyphen behind a
#: word is no sign, and a point there no decimal point.
NUMBER = re.compile(
    r"(?:(?<![\w)}])[-−]\\?\$?)?(?:\d+ +\d+/\d+|\d{1,3}(?: \d{3})+(?![\d-])|\d+\.\d{3},\d+"
    r"|(?:\d(?:[\d,]*\d)?(?:\.\d+)?|(?<![\w.])\.\d+)(?:/\d+|:\d\d?(?!\d))*)"
)

_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALES |= {"lakh": 10**5, "crore": 10**7}
_ANY_SCALE = "|".join(_SCALES)
_ASKED = re.compile(rf"\bhow many ({_ANY_SCALE})s?\b|\bin ({_ANY_SCALE})s\b", re.IGNORECASE)
PERCENT = "%"
#: These change the value too, wherever they stand.
_OPERATION = re.compile(
    "pi|squared|cubed|factorial|minus|plus|divided|multiplied|mod|sqrt|ln|sin|cos|bn"
    "|halves|thirds|(?:fif|six|seven|eigh|nin|ten|hundred|thousand)ths"
)
#: Unknowns in a box, of functions too (18 log theta), and words elsewhere: 18 beta testers.
_GREEK = re.compile("alpha|beta|gamma|delta|theta|lambda|sigma|omega|infinity")
#: Single letters that are units; any other is an unknown, as in 18 x, or a scale, as in 18K.
_UNIT_LETTERS = "mghsL"
#: In prose some are words: 18 a day, 18 I think.
_PROSE_LETTERS = _UNIT_LETTERS + "aI"
#: In \text{…} all but a few are units: 18\text{ N}.
_TEXT_LETTERS = re.sub("[KMBkxyz]", "", ascii_letters)
_BETWEEN = re.compile("of|on|to|by|at|as")
#: Short words that are no product of unknowns, as xy would be: units, M&Ms, CDs, and what stands between other words.
_SHORT = re.compile(
    r"(?i:[mcdkn]m|ft|yds?|mi|sq|sqft|cc|ml|pts?|qt|gal|tsp|tbs|tbsp|oz|lbs?|mg|gm|kgs?|ms|sec|min|hrs?|day|yrs?|deg"
    rf"|mp[hg]|[wrb]pm|kmh|kph|[kmg]?hz|kwh?|[kmgt]b|[kmg]bps|k?pa|[ap]m|in|{_BETWEEN.pattern})|.*&.*|[A-Z]{{2,}}s"
)

_SPACES = re.compile(
    r"\\[,;:! ]|~|\\q?quad\b|\\hspace\*?\{[^{}]*\}|\\(?:blacksquare|square|Box|checkmark|qed)\b"  # and ends of proofs
)
_RAISED = r"\^?\{?(?:\\(?:text|mathrm)\s*\{)?"
#: 1\,000; €18; Rs 18; 18 °C; 7 p.m.; 21st, 18^{th}.
_SIGNS = re.compile(
    r"(?<=\d)\\[,!](?=\d{3}(?!\d))|[€£¥₹¢]|\b(?:USD?|EUR|GBP|Rs\.?)\s*(?=\\?\$?\d)|\b[aApP]\.\s?[mM]\b\.?"
    r"|(?:°|\\degree\b|\^\{?\\circ\}?)(?:\s?[CF]\b)?"
    rf"|(?:(?<=1){_RAISED}st|(?<=2){_RAISED}nd|(?<=3){_RAISED}rd|(?<=\d){_RAISED}th)\b\}}*"
)
_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)?|math(?:rm|bf|it|sf|tt)|mbox|boldsymbol)\s*\{([^{}]*)\}")
_UNIT_LETTER = re.compile(rf"\\(?:text|mathrm)\s*\{{\s*[{_TEXT_LETTERS}]\s*\}}(?:\^\{{?[23]\}}?|[²³])?(?!\s*[/\\])")
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
    r"[^\S\n]*-?(?:(?P<value>\\?%|π|\\pi\b|and (?:a|one)[ -](?:half|third|quarter)|(?i:per ?cent\b))"
    rf"|(?P<word>{_WORD}(?:/{_WORD})*))"
)
_PLAIN = re.compile(
    r"(?P<sign>[-+]?)(?:(?P<whole>\d{1,40})\s+(?=\d+/))?"
    r"(?P<number>(?=\.?\d)(?:\d{1,3}(?:[,\s]\d{3})+|\d{0,40})(?:\.\d{0,40})?)(?:/(?P<below>\d{1,40}))?"
)
_HALVES = str.maketrans({"½": " 1/2", "⅓": " 1/3", "⅔": " 2/3", "¼": " 1/4", "¾": " 3/4"})
_NEGATIVE = re.compile(r"(?<!\d )\b(?:minus|negative)\s+(?=\$?[\d.])", re.IGNORECASE)
_GAP = r"(?:\\[,;: ]|[\s~]){0,3}"
#: 1240 mod 1000; 1240 \pmod{1000}; 1240 (\text{mod } 1000). Not the 5 of 3^5 mod 7, nor that of 3 + 5 mod 7.
_REMAINDER = re.compile(
    rf"(?<![\w^).}},+/×-])(?<![+/×-]\s)(?P<number>\d[\d,]{{0,40}}){_GAP}(?P<round>\()?(?P<text>\\text\{{)?\s?"
    rf"\\?[pb]?mod(?:ulo)?\b{_GAP}(?(text)\}}{_GAP})(?P<curly>\{{)?(?P<by>[1-9]\d{{0,40}})(?(curly)\}})(?(round)\))"
)
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
    """18½ as 18 1/2, negative 3 as -3, and 1240 mod 1000 as 240."""
    text = _NEGATIVE.sub("-", text.translate(_HALVES))
    return _REMAINDER.sub(lambda found: str(int(found["number"].replace(",", "")) % int(found["by"])), text)


def with_its_words(text: str, number: re.Match[str]) -> str:
    """A number in prose with the word behind it, if that changes its value: "18 million" of "18 million dollars"."""
    found = _NEXT_WORD.match(bare(re.sub(r"[*$]|\\[()]", "", text[number.end() : number.end() + 100])))
    if found is None or ((word := found["word"]) and not _scales(word) and _is_unit(word, _PROSE_LETTERS)):
        return number[0]
    return f"{number[0]} {found['value'] or word}"


def bare(text: str) -> str:
    """Without spacing commands, signs of currency and units of one letter, and with what stands in \\text{…} and its
    like in the open."""
    return _unwrapped(_UNIT_LETTER.sub(" ", _SPACES.sub(" ", _SIGNS.sub("", text))), r" \1 ").strip(" $")


def _unwrapped(text: str, by: str) -> str:
    while (opened := _WRAPPED.sub(by, text)) != text:
        text = opened
    return text


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
    if not _are_units(found, text, strict):
        return "", re.sub(r"\bpi\b", r"\\pi", opened), Fraction(1)
    return start, quantity, Fraction(prod(_SCALES[each] for each in _scales(_PER.split(words)[0]) if each not in leave))


def _are_units(found: re.Match[str], text: str, strict: bool) -> bool:
    """Whether the words are units and scales, and no algebra, which those outside \\text{…} may be, and single letters
    behind an expression are."""
    words = found["words"]
    if re.match(r"(?:or|and)\b", words, re.IGNORECASE) or _BETWEEN.fullmatch(words):
        return False
    loose = set(re.findall("[A-Za-z]+", _unwrapped(text, " ")))
    letters = _UNIT_LETTERS if _plain(found[2]) is not None else ""
    shortest = 4 if strict or not found["gap"].isspace() else 3
    return all(
        _is_unit(word, _TEXT_LETTERS)
        if loose.isdisjoint(re.findall("[A-Za-z]+", word))
        else _is_unit(word, letters, shortest)
        for part in _PER.split(words)
        for word in part.replace(".", " ").split()
    )


def _is_unit(word: str, letters: str, shortest: int = 0) -> bool:
    """The one rule for box, statement and prose: no operation, and of single letters one of `letters`. A word that may
    be algebra (`shortest` > 0) is on our list, or has so many letters and a vowel."""
    parts = word.lower().split("-")
    if any(map(_OPERATION.fullmatch, parts)):
        return False
    if len(word) == 1:
        return word in letters
    if not shortest or _SHORT.fullmatch(word):
        return True
    return len(word) >= shortest and bool(re.search("[aeiouAEIOU]", word)) and not any(map(_GREEK.fullmatch, parts))


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
