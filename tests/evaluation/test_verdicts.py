"""Answers that a grader may take for right when they are wrong, or for wrong when they are right."""

import random
import time
from itertools import product
from string import ascii_letters, ascii_lowercase
from typing import Any

import pytest

from trustmopd.evaluation.mathematics import equal, grade_answer, grade_number
from trustmopd.evaluation.quantities import number_of

pytest.importorskip("math_verify")

BOXED = [
    # points and signs
    ("0.5", ".5", True),
    ("5", ".5", False),
    ("75", "$.75", False),
    ("0.75", r"\$.75", True),
    ("-0.5", "-.5", True),
    ("0.5", "+.5", True),
    ("5", "5.", True),
    ("5", "-$5", False),
    ("-5", "-$5", True),
    ("-5", r"-\$5", True),
    ("-5", "−5", True),
    ("0", ".", False),
    # fractions and mixed numbers
    ("1.5", "1 1/2", True),
    ("1", "1 1/2", False),
    ("0.5", "1 1/2", False),
    ("1.5", r"1\frac{1}{2}", True),
    ("2.5", "5/2", True),
    ("0.5", "1/2 cup", True),
    ("0.5", r"\frac{1}{2} cup", True),
    ("0.5", r"\frac{1}{2} cups", True),
    ("1", "1/2 cup", False),
    ("0", "1/0", False),
    ("1", "1/0", False),
    # thousands
    ("10000", "10,000", True),
    ("10000", "10 000", True),
    ("10", "10 000", False),
    ("10", "10,000", False),
    ("10", "10,00", False),
    ("1000", r"1\!000", True),
    (r"\frac{1000}{3}", r"\frac{1\,000}{3}", True),
    ("12345", r"12,\!345", True),
    ("34", r"3\,4", False),
    ("2.5", r"2\,1/2", True),
    ("10.5", r"2\,1/2", False),
    ("1234.56", "1.234,56", False),  # a decimal comma is not read
    # units
    ("18", "18cm", True),
    ("18", "18ft", True),
    ("18", "18m", True),
    ("18", "18 kg", True),
    ("18", "18km/h", True),
    ("18", "18/hour", True),
    ("18", r"\$18/\text{hour}", True),
    ("18", "18 sq. ft.", True),
    ("18", "18 min", True),
    ("18 min", "18", True),
    ("18", "18 days", True),
    ("18", "18apples", True),
    ("18", "18 a day", True),
    ("18", "18 each", True),
    ("18", "18 cups per bowl", True),
    ("18", "x = 18 eggs", True),
    ("18", r"18\pi", False),
    (r"18\pi", "18π", True),
    (r"18\pi", r"18\pi cm", True),
    (r"18\pi", "18 pi", True),
    (r"\sqrt{2}", r"\sqrt{2}\text{ cm}", True),
    (r"\sqrt{2}", r"\sqrt{2} units", True),
    (r"\sqrt{2}", r"\sqrt{2}cm", True),
    ("18", r"18^\circ C", True),
    ("18", r"18\degree", True),
    ("18", r"\boldsymbol{18}", True),
    ("7", "7 p.m.", True),
    ("18", "USD 18", True),
    ("18", "Rs. 18", True),
    ("18", "₹18", True),
    ("18", "18¢", True),
    ("18", "18 CDs", True),
    ("18", "18 DVDs", True),
    ("18", "18 kgs", True),
    ("18", "18 tbs", True),
    ("18", "18 tsp", True),
    ("18", "18 mpg", True),
    ("18", "18wpm", True),
    ("18", "18 Mbps", True),
    ("18", "18 sqft", True),
    ("18", "18 log cabins", True),
    ("18", r"18\text{ beta testers}", True),
    ("18", "18 over two weeks", True),
    ("18", r"18\text{ divided by two}", False),
    # ordinals
    ("18", "18th", True),
    ("18", "18^{th}", True),
    ("18", r"18^{\text{th}}", True),
    ("18", r"18^\text{th}", True),
    ("18", r"18\text{th}", True),
    ("18", "18th place", True),
    ("18", "18^{st}", False),
    ("21", "21st", True),
    ("12", "12^{th}", True),
    ("18", r"18 \quad \blacksquare", True),
    ("18", r"18\text{ m}/\text{s}", True),
    ("18", r"18\text{ eggs and }3\text{ hens}", False),
    ("18", "18 feet 6 inches", False),
    ("18", "18 as", False),
    ("18", "x >= 18 eggs", False),
    ("18", "> 18", False),
    ("18", r"\geq 18", False),
    ("x > 18", "> 18", True),
    ("18", "x > 18", False),
    # algebra
    ("6", "6 ab", False),
    ("6", "6ab", False),
    ("6", "6 bc", False),
    ("6", "6 a", False),
    ("6", "6a", False),
    ("6", "6 a^2", False),
    ("6", "6 a b", False),
    ("6", "6 t", False),
    ("6", "6 c", False),
    ("6", "6 d", False),
    ("6", "6d", False),
    ("6", "6 o", False),
    ("6", "6abc", False),
    ("6", "6/x", False),
    ("6", "6/ab", False),
    ("6", "6I", False),
    ("6", "6i", False),
    ("6", r"6 \sin t", False),
    ("6", "6 tan alpha", False),
    ("6", "6 log x", False),
    ("6", "6 log 2", False),
    ("6", "6 arctan(2)", False),
    ("6", r"6 \sqrt{2}", False),
    ("6", "6 sqrt(2)", False),
    ("6", "6 + t", False),
    ("5ab", "5", False),
    ("5ab", "5ba", True),
    ("5ab", "5ac", False),
    ("2t", "2", False),
    ("2t", "2 t", True),
    ("2t", r"2 \cdot t", True),
    ("2c", "2", False),
    ("2d", "2", False),
    ("2 a", "2", False),
    ("2 a", "2a", True),
    ("x + 5c", "x + 5", False),
    ("x + 5c", "5c + x", True),
    (r"\frac{1}{2} t", r"\frac{1}{2}", False),
    (r"\frac{t}{2}", r"\frac{1}{2} t", True),
    (r"\frac{3}{4}ab", r"\frac{3}{4}", False),
    (r"2 \sin t", r"2 \sin x", False),
    (r"2 \sin t", r"2\sin(t)", True),
    ("2 + 3i", "3i + 2", True),
    ("2e", "2", False),
    ("3x^2", "3 x^2", True),
    ("y = 2x + t", "y = t + 2x", True),
    ("ab", "ab", True),
    ("ab", "cd", False),
    ("no solution", r"\text{no solution}", True),
    # several answers
    ("18", "18 or 20", False),
    ("18", r"18 \text{ or } 20", False),
    ("18", "18, 20", False),
    ("18", r"\{18, 20\}", False),
    ("18", "18:20", False),
    ("3", "3:2", False),
    ("2", "3:2", False),
    ("3:2", "3:2", True),
    ("18", "18-20", False),
    # scales
    ("18000", "18 thousand", True),
    ("18", "18K", False),
    ("3", r"3\text{k}", False),
    ("3", r"\$3\text{k}", False),
    ("3", r"3\text{ bn}", False),
    ("300000", r"3\text{ lakh}", True),
    ("3", r"3\text{ lakh}", False),
    ("3", r"3\text{ halves}", False),
    ("3", r"3\text{ fifths}", False),
    ("3", "3 thirds", False),
    ("3", "3 quarters", True),  # coins
    ("1500000", "1.5 million dollars", True),
    ("1500000", r"1.5 \times 10^6", True),
    ("0.5", "50%", True),
    ("500000", ".5 million", True),
]


@pytest.mark.parametrize(("gold", "answer", "same"), BOXED)
def test_what_a_box_holds(gold: str, answer: str, same: bool) -> None:
    assert equal(gold, answer) is same
    assert grade_number({"answer": gold}, rf"So it is $\boxed{{{answer}}}$.").score == same


STATED = [
    ("0.5", "is .5", True),
    ("5", "is .5", False),
    ("0.75", "is $.75.", True),
    ("75", "is $.75", False),
    ("-5", "is -$5", True),
    ("5", "is -$5", False),
    ("1.5", "is 1 1/2 hours", True),
    ("1", "is 1 1/2 hours", False),
    ("10000", "is 10 000", True),
    ("10", "is 10 000", False),
    ("3", "is 3:30", False),
    ("18.5", "is 18½", True),
    ("18", "is 18 ½", False),
    ("-18", "is negative 18", True),
    ("18", "is minus 18", False),
    ("18", "is > 18", False),
    ("1234.56", "is 1.234,56", False),
    ("18", "is 18¢", True),
    ("18", "is 18th.", True),
    ("18", "is 18^{th}", True),
    ("18", r"is $18^{\text{th}}$", True),
    ("3", "is 3 halves", False),
    ("3", "is 3 bn dollars", False),
    # one word leads to it
    ("204", "is therefore 204.", True),
    ("204", "is thus $204$", True),
    ("204", "is exactly 204", True),
    ("204", "is indeed **204**", True),
    ("204", "is equal to 204", True),
    ("204", "is, therefore, 204", True),
    # a remainder
    ("240", "is 240 mod 1000.", True),
    ("1000", "is 240 mod 1000.", False),
    ("240", "is 240 (mod 1000)", True),
    ("240", "is 1,240 modulo 1000", True),
    ("240", r"is $1240 \bmod 1000$", True),
    ("1240", r"is $1240 \pmod{1000}$", False),
    ("240", r"is $N \equiv 240 \pmod{1000}$", True),
    ("-760", "is -760 mod 1000", False),
    ("243", r"is $3^5 \pmod 7$", False),  # not worked out, nor are the next
    ("5", r"is $3^5 \pmod 7$", False),
    ("8", "is 3 + 5 mod 7", False),
    # what follows is a condition or a reason
    ("70", "is 70 for n = 5.", True),
    ("5", "is 70 for n = 5.", False),
    ("70", "is 70 for $n=5$", True),
    ("70", "is 70 with tax = 2", True),
    ("70", "is 70 given x=3", True),
    ("70", "is 70 at t = 0", True),
    ("70", "is 70 assuming x = 3", True),
    ("70", "is x = 70 for n = 5", True),
    ("70", "is 70, where x = 3", True),
    ("70", "is 70, x = 3", True),
    ("70", "is 70 (x = 3)", True),
    ("70", r"is $70 \pmod{1000}$", True),
    ("70", "is 70, 20 more than before", True),
    ("70", "is 70 - I think", True),
    ("70", "is 70 I think", True),
    ("70", "is 70!", True),
    ("70", "is **70**. That is 5 less than 75.", True),
    ("75", "is **70**. That is 5 less than 75.", False),
    ("70", 'is "70"', True),
    ("70", "is (70)", True),
    ("70", "is ≈ 70", True),
    ("70", r"is $70$ \\", True),
    ("70", r"is \$70", True),
    ("70", "is `70`", True),
    ("70", r"is $70$ \blacksquare", True),
    ("70", r"is $70^\circ$", True),
    ("70", r"is $x = \boldsymbol{70}$", True),
    ("70", "is 70 i.e. 7 tens", True),
    ("70", "is 70cm", True),
    ("70", "is $70/hour", True),
    ("70", "is 70 a day", True),
    # calculations
    ("18", r"is $18 = 2 \times 9$.", True),
    ("2", r"is $18 = 2 \times 9$.", False),
    ("18", r"is $2 \times 9$", True),
    ("2", r"is $2 \times 9$", False),
    ("18", "is 9 + 9, which is 18", True),
    ("9", "is 9 + 9, which is 18", False),
    ("8", "is $5 + $3", True),
    ("5", "is $5 + $3", False),
    ("8", "is $5 + $3 = $8", True),
    ("8", "is 5 apples + 3 apples = 8 apples", True),
    ("2.4", "is 240 cents = $2.40", True),
    ("70", "is 70 = C(8, 4)", True),
    ("18", "is 36/2", True),
    ("36", "is 36 / 2", False),
    ("36", "is 36 over 2", False),
    ("36", "is 36 times 2", False),
    ("36", "is 36 choose 2", False),
    ("18", "is 3! * 3", True),
    ("3", "is 3! * 3", False),
    ("180", "is 1.8 x 10^2", True),
    ("5", "is 5 ** 2", False),
    ("5", "is 5**2", False),
    # a command or a root behind a space
    ("70", r"is $70 \sqrt{2}$", False),
    (r"70\sqrt{2}", r"is $70 \sqrt{2}$", True),
    ("70", r"is $70 \frac12$", False),
    ("70", "is 70 √2", False),
    ("70", "is 70√2", False),
    ("70", "is 70 sqrt(2)", False),
    ("70", "is 70 * sqrt(2)", False),
    ("70", r"is $70 \pi r^2$", False),
    ("70", r"is $70 \pi$", False),
    (r"70\pi", r"is $70 \pi$", True),
    ("70", r"is $70 \cdot 10^3$", False),
    ("70000", r"is $70 \cdot 10^3$", True),
    ("70", "is 70x", False),
    ("70", "is 70ab", False),
    # several answers
    ("18", "is 18 or 20", False),
    ("20", "is 18 or 20", False),
    ("18", "is 18, 20", False),
    ("18", "is 18, 19, and 20", False),
    ("18", "is 18 to 20", False),
    ("18", "is 18-20", False),
    ("18", "is 18 – 20", False),
    ("18", "is $18 and 50 cents", False),
    ("3", "is 3 hours 30 minutes.", False),
    ("3", "is 3 hours, 30 minutes.", False),
    ("3", "is 3 hours and 30 minutes", False),
    ("3", "is 3 ft 6 in", False),
    ("3", "is 3 lbs 6 oz", False),
    ("3", "is 3 m 20 cm", False),
    ("3", "is 3 days 4 hours", False),
    ("3", "is 3 dollars 50", False),
    ("3", "is 3 apples, 4 pears", False),
    ("3", "is 3 apples & 4 pears", False),
    ("3", "is 3 red apples and 4 pears", False),
    ("3", "is 3 : 4", False),
    ("3", "is 3 to 4 hours", False),
    ("18", "is $18$ and $20$", False),
    ("18", "is **18** or **20**", False),
    ("18", "is **18** hours **20** minutes", False),
    ("18", "is 18 to 2 decimal places", True),
    ("18", "is 18 remainder 2", False),
    ("18", "is 18 R 2", False),
    ("18", "is 18 dollars after 3 weeks", True),
    ("18", "is 18 hours in 3 days", True),
    ("18", "is 18 eggs, 3 fewer than before", True),
    ("5", "is x = 5 or x = 6", False),
    ("6", "is x = 5 or x = 6", False),
    ("(1, 2)", "is (1, 2)", True),
    ("(1, 2)", "is (x, y) = (1, 2)", True),
    ("1", "is (1, 2)", False),
    ("18", "is 18 of the 20", True),
    ("18", "is 18 out of 20", True),
    ("18", "is 18, not 20", True),
    ("20", "is 18, not 20", False),
]


@pytest.mark.parametrize("grader", [grade_answer, grade_number])
@pytest.mark.parametrize(("gold", "said", "right"), STATED)
def test_what_a_statement_says(grader: Any, gold: str, said: str, right: bool) -> None:
    assert grader({"answer": gold}, f"We add 4 and 3.\nThe answer {said}").score == right


PROSE = [
    ("0.5", "It is .5", True),
    ("5", "It is .5", False),
    ("0.75", "It costs $.75", True),
    ("75", "It costs $.75", False),
    ("5", "See No.5", True),
    ("5", "He counts eggs.5 are there", True),
    ("5", "and so on...5", True),
    ("-5", "It falls to -$5", True),
    ("5", "It falls to -$5", False),
    ("12", "She lives in B-12", True),
    ("1.5", "It takes 1 1/2 hours", True),
    ("0.5", "It takes 1 1/2 hours", False),
    ("30", "He comes at 3:30", False),
    ("2", "The ratio is 3:2", False),
    ("18.5", "It takes 18½ hours", True),
    ("18", "It takes 18½ hours", False),
    ("118000", "His net proceeds are $118 000.", True),
    ("0", "His net proceeds are $118 000.", False),
    ("210", "Week 3:210 pages", True),
    ("-3", "It falls to minus 3 degrees", True),
    ("3", "It falls to minus 3 degrees", False),
    ("56", "It is 1.234,56", False),
    ("240", "It leaves 240 mod 1000", True),
    ("18", "He came 18th", True),
    ("18", "He has 18 fifths", False),
    ("18", "She has 18 CDs", True),
    ("18", "He made 18 over two weeks", True),
    ("18", "There are 18 beta testers", True),
    ("18", "It is 18 multiplied by two", False),
    ("7", "She is back at 7 p.m.", True),
    ("24", "She sold 48/2 = <<48/2=24>>24 clips. The answer is <<24=24>>24.", True),
    ("18", "The answer is B. 18", True),
    ("18", "He makes 18 a day", True),
    ("18", "That is 18, I think", True),
    ("18", "He has 18 n", False),
    ("18", "It is 18 squared", False),
    ("18", "It is 18 cm^2", True),
    ("18", "The answer is about 18", True),
    ("18", "The answer is about 18 for n = 5", True),
    ("18", "The answer is approximately $18.", True),
    ("6", "The answer is: thus, in 120 minutes, he takes 120/20=6 trips", True),
    ("1", "The answer is n^2 + 1", False),
    ("18", "The answer is not 20 but 18", True),
    ("20", "The answer is not 20 but 18", False),
]


@pytest.mark.parametrize(("gold", "response", "right"), PROSE)
def test_what_the_last_number_is(gold: str, response: str, right: bool) -> None:
    assert grade_number({"answer": gold}, response).score == right


#: Of one letter or two, in lower case or a capital: nothing else is a unit, whatever math-verify's list has.
UNITS = {
    *("g", "h", "m", "s", "L", "nm", "mm", "cm", "dm", "km", "in", "ft", "yd", "mi", "sq", "cc", "ml", "pt", "qt"),
    *("mg", "gm", "kg", "oz", "lb", "ms", "hr", "yr", "am", "pm", "hz", "kw", "kb", "mb", "gb", "tb", "pa"),
}


def test_short_words_are_units_by_our_list_alone() -> None:
    pairs = ["".join(pair) for pair in product(ascii_lowercase, repeat=2)]
    for number in ("6", "6 "):
        for strict in (False, True):
            words = [*ascii_letters, *pairs]
            ordinal = {"th"} if number == "6" else set()
            assert {word for word in words if number_of(number + word, strict=strict) == 6} == UNITS | ordinal
    for word in [*ascii_letters, "ab", "bc", "rd", "lt", "or", "xy", "as", *random.Random(0).sample(pairs, 40)]:
        assert equal("6", f"6{word}") is (word in UNITS), word
        assert equal(f"6 {word}", "6") is (word in UNITS), word


@pytest.mark.parametrize("grader", [grade_answer, grade_number])
@pytest.mark.parametrize("form", [r"\boxed{{{}}}", r"The answer is ${}$.", "**Answer:** {}"])
@pytest.mark.parametrize(
    "remainder", [r"240 \pmod{1000}", r"240 (\text{mod } 1000)", r"240\ (\bmod\ 1000)", "240 mod 1000", "3240 mod 1000"]
)
def test_a_remainder_is_the_same_in_a_box_and_in_a_statement(grader: Any, form: str, remainder: str) -> None:
    response = form.format(remainder)
    assert grader({"answer": "240"}, response).score == 1
    assert grader({"answer": "1000"}, response).score == grader({"answer": "3240"}, response).score == 0


def test_a_long_answer_is_not_read_for_words() -> None:
    began = time.monotonic()
    assert number_of("=1 a" * 4_000 + "!") is None
    assert time.monotonic() - began < 1


def test_a_word_of_three_letters_is_a_unit_in_an_answer_and_an_unknown_in_a_reference() -> None:
    """Without a dictionary "6 abc" is as good a word as "6 cup": the price of honest units."""
    assert equal("6", "6 cup") is True and equal("6", "6 abc") is True
    assert equal("6 abc", "6") is False
