"""Answers to mathematics: which one is taken, and when two are the same."""

import random
import threading
import time
from typing import Any

import pytest
from shared_data import real

from trustmopd.evaluation import get_benchmark
from trustmopd.evaluation.mathematics import TIME_LIMIT, equal, grade_answer, grade_number, last_boxed
from trustmopd.evaluation.reasoning import strip_reasoning

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so \boxed{70}.", "70"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\boxed{5} or {\boxed{6}} }", "6"),
        (r"\boxed{1} then \boxed{\boxed{2} metres}", "2"),
        (r"\boxed {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed{3} and then \boxed{4", "3"),  # cut short: the last whole one
        (r"{{{ \boxed{3} }", "3"),
        (r"\boxed{}", None),
        (r"\boxed{588}, given within \boxed{} as asked", "588"),
        (r"\boxed{588}, within \boxed{ }", "588"),
        ("70", None),
        ("", None),
        (r"\\boxed{5}", None),  # a line break, and then the word
    ],
)
def test_the_last_whole_box_counts(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (r"\boxed{70}", True),
        (r"\boxed{070}", True),
        (r"\boxed{70.0}", True),
        (r"\boxed{70.}", True),
        (r"\boxed{+70}", True),
        (r"\boxed{ 70 }", True),
        (r"\boxed{$70$}", True),
        (r"\boxed{\frac{140}{2}}", True),
        (r"\boxed{\dfrac{140}{2}}", True),
        (r"\boxed{140/2}", True),
        (r"\boxed{\text{70}}", True),
        (r"\boxed{70\text{ degrees}}", True),
        (r"\boxed{70^\circ}", True),
        (r"\boxed{70 apples}", True),
        (r"\boxed{70\,\mathrm{cm}}", True),
        (r"\boxed{\$70}", True),
        (r"\boxed{x = 70}", True),
        (r"\boxed{35 \cdot 2}", True),
        (r"\boxed{12} no, \boxed{70}", True),
        (r"\boxed{70}. I checked 3 times, and put it within \boxed{}.", True),
        (r"\boxed{70} no, \boxed{12}", False),
        (r"\boxed{71}", False),
        (r"\boxed{-70}", False),
        (r"\boxed{7}", False),
        (r"\boxed{700}", False),
        (r"\boxed{70.5}", False),
        (r"\boxed{7, 0}", False),
        (r"\boxed{}", False),
        ("The answer is 70.", True),
        ("**Final answer:** $70$", True),
        ("The answer is 70, because 71 is prime.", True),
        ("Answer: \\(70\\)", True),
        ("The answer is 71, though 70 was close", False),
        ("The answer is 70x", False),
        ("We answer this: there are 70", False),
        ("We find 70", False),  # for AIME a number in passing is no answer
        ("", False),
    ],
)
def test_an_integer_in_every_dress(answer: str, right: bool) -> None:
    assert grade_answer({"answer": "70"}, answer).score == right


@pytest.mark.parametrize(
    ("reference", "answer", "same"),
    [
        ("1,070", "1070", True),
        ("1070", "1{,}070", True),
        ("1/2", "0.5", True),
        (r"\frac{1}{3}", "0.5", False),
        (r"\frac{\sqrt{8}}{2}", r"\sqrt{2}", True),
        (r"\{1, 2\}", r"\{2, 1\}", True),
        ("(1, 2)", "(2, 1)", False),
        ("2x + 1", "1 + 2x", True),
        (r"\text{no solution}", r"\text{no solution}", True),
        ("1000", r"1\,000", True),
        ("12", "12 apples", True),
        ("12", "12 miles per hour", True),
        ("5", "5 million", False),
        ("3", "3 full dozens", False),
        ("2", "2 pi", False),
        ("5", "5 x", False),
        ("5000000", "5 million", True),
        ("36", r"3\text{ dozen eggs}", True),
        ("18 thousand", "18,000", True),
        ("500000", r"\frac{1}{2}\text{ million}", True),
        (r"\frac{1}{2}", r"\frac{1}{2}\text{ million}", False),
        (r"18\pi", "18 pi", True),
        ("0.18", r"18\%", True),
        ("18%", "18", True),  # the reference asks for a percentage
        ("2x", "2 xy", False),
        ("1 - pq", "1", False),
        ("1 - pq", "1 - ab", False),
        ("1 - pq", "1-qp", True),
        ("6", "6 xy", False),
        ("6", "6 xyz", False),
        ("6 xy", "6", False),
        ("6 abc", "6", False),
        ("1", "1 - ln x", False),
        ("1", "1-abc", False),
        ("18", "18 minus x", False),
        ("18", "18 plus tax", False),
        ("18", "18 times x", False),
        ("18", "18 or x", False),
        ("18", r"18 \text{ or } x", False),
        ("18", "18 log theta", False),
        ("18", "18 apples - pq", False),
        ("18", "18 m/n", False),
        ("18 minus x", "18 minus x", True),
        ("18", "18-inch", True),
        ("18", "18 boys and girls", True),
        ("18", "18 of them", True),
        ("18", "18 times as many", True),
        ("12 oranges", "12", True),
        ("18", "€18", True),
        ("18", "18 £", True),
        ("18", "18 °C", True),
        ("18", "-€18", False),
        ("3", "3 M&Ms", True),
        ("3", r"3\text{ M\&Ms}", True),
        ("3", r"3\text{ M}", False),
        ("123456789012345678901234567890", "123456789012345678901234567891", False),
    ],
)
def test_equal_means_mathematically_equal(reference: str, answer: str, same: bool) -> None:
    assert equal(reference, answer) is same


CHANGED = [
    *(" million", " thousand", " hundred dollars", " billion people", " dozen", " dozens of eggs", "-million"),
    *(" x", " n", " pi", "π", r"\pi", "%", r"\%", " percent", " per cent", " squared", "K", " hundredths"),
    *(" and a half", r"\text{ million}", r"\,\text{thousand}", r"\;\mathrm{billion}", r"~\mbox{ dozen}"),
    *(r"\!\text{ x}", r" \text{ million dollars}", r"\text{ percent}", r"\ \textbf{hundred}"),
]
UNITS = [
    *("", " dollars", " km", " m", " km/h", " cm^2", " degrees", " apples each", " dollars per dozen", " a day", "."),
    *(r"\text{ apples}", r"^\circ", r"\,\mathrm{cm}", r"\;\text{miles per hour}", r"\text{ cm}^2", r"\ \text{m}"),
    *(r"\text{ dollars}.", " third graders", r"\text{ N}", r"\,\mathrm{V}", "°", "€", " M&Ms"),
]


@pytest.mark.parametrize(("behind", "right"), [*((each, 0) for each in CHANGED), *((each, 1) for each in UNITS)])
@pytest.mark.parametrize("form", [r"\boxed{18BEHIND}", "The answer is 18BEHIND", "So he has 18BEHIND"])
def test_a_unit_behind_a_number_is_dropped_and_a_scale_is_not(form: str, behind: str, right: int) -> None:
    assert grade_number({"answer": "18"}, form.replace("BEHIND", behind)).score == right


def test_a_percentage_is_its_number_where_one_is_asked_for() -> None:
    row = {"prompt": "What percentage of the puppies have spots?", "answer": "35"}
    for response in (r"\boxed{35\%}", "It is 35%.", "The answer is 35 percent", r"\boxed{35}"):
        assert grade_number(row, response).score == 1
        other = {**row, "prompt": "How many puppies have spots?"}
        assert grade_number(other, response).score == ("{35}" in response)
    assert grade_number(row, r"\boxed{36\%}").score == 0


@pytest.mark.parametrize(
    ("question", "answer", "response", "right"),
    [
        ("How many dozens of eggs are there?", "7", "There are 7 dozen.", True),
        ("How many dozen eggs are there?", "7", r"\boxed{7\text{ dozens}}", True),
        ("How many dozens of eggs are there?", "7", "There are 7.", True),
        ("How many dozens of eggs are there?", "7", "There are 84 eggs.", False),
        ("How many dozens of eggs are there?", "7", "There are 7 million.", False),
        ("How many eggs are in the dozens of boxes?", "7", "There are 7 dozen.", False),
        ("What is it worth, in thousands of dollars?", "7", "The answer is 7 thousand dollars", True),
        ("What is it worth, in millions?", "0.5", r"\boxed{\frac{1}{2}\text{ million}}", True),
    ],
)
def test_a_scale_may_be_said_where_it_is_asked_for(question: str, answer: str, response: str, right: bool) -> None:
    assert grade_number({"prompt": question, "answer": answer}, response).score == right


@pytest.mark.parametrize("grader", [grade_answer, grade_number])
@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("The answer is 5 + 3 = 8.", "8"),
        (r"The answer is \(5 + 3 = 8\).", "8"),
        ("**Answer:** 12 * 5 = **60**", "60"),
        ("The answer is 18 x 2 = 36", "36"),
        ("The answer is 2 apples + 6 = 8 apples.", "8"),
        ("The answer is 5 + 3.", "8"),
        ("The answer is 70, because 71 = 70 + 1", "70"),
        ("The answer is 70 since x = 3", "70"),
        ("The answer is 70 (with x = 3).", "70"),
        ("The answer is x = 18, as required.", "18"),
        ("The answer is €18", "18"),
    ],
)
def test_a_calculation_is_stated_by_its_result(grader: Any, response: str, answer: str) -> None:
    for number in ("8", "60", "36", "70", "18", "5", "12", "2", "3", "71"):
        assert grader({"answer": number}, response).score == (number == answer), number


@pytest.mark.parametrize(
    "said", ["about 18", "therefore 18", "that he has 18 eggs. It took 3 steps", "easy.\nHe has 18"]
)
def test_a_statement_that_begins_with_words_is_read_for_its_number(said: str) -> None:
    assert grade_number({"answer": "18"}, f"He had 7. The answer is {said}.").score == 1


def test_words_that_are_the_answer_are_not_taken_for_a_unit() -> None:
    assert equal(r"\text{Route 66}", r"\text{Route 66}") is True
    assert grade_answer({"answer": r"\text{no solution}"}, r"The answer is \text{no solution}").score == 1
    assert grade_number({"answer": "18"}, "It is 18.\nX marks it").score == 1
    assert grade_number({"answer": "18"}, "He got 18 A's").score == 1
    assert grade_number({"answer": "18"}, "**18** million").score == 0


@pytest.mark.parametrize(
    ("reference", "response", "right"),
    [
        ("Janet sells 16 - 3 = <<16-3=13>>13 eggs.\n#### 18", "so \\boxed{18}", True),
        ("#### 1,200", "That makes 1200 dollars.", True),
        ("51.0", "She pays 76 - 25 = 51 dollars.", True),
        ("51.0", "She pays 51 dollars, which is 25 less than 76", False),
        ("0.5", "It is 1/2.", True),
        ("5", "no number", False),
        ("3", "He has 10-3 apples", True),
        ("-3", "He has 10-3 apples", False),
        ("-3", "It falls to -3 degrees", True),
        ("5", "The answer is 5 million", False),
        ("5", "The answer is 5 a day", True),
        ("5", "The answer is 5 apples", True),
    ],
)
def test_word_problems_take_the_last_number_where_there_is_no_box(reference: str, response: str, right: bool) -> None:
    assert grade_number({"answer": reference}, response).score == right


def adversarial(count: int) -> list[str]:
    """Short strings that parsers and computer algebra stumble over."""
    draw = random.Random(0)
    atoms = [
        r"\frac",
        "{",
        "}",
        "^",
        "_",
        r"\sqrt",
        "(",
        ")",
        "[",
        "9",
        "x",
        "!",
        r"\int",
        r"\sum",
        "=",
        ",",
        "\\",
        "$",
    ]
    fixed = [
        "9^{9^{9^{9}}}",
        "99999999!!!",
        r"\sum_{k=1}^{10^{12}} \frac{1}{k^k}",
        r"\int_0^{\infty} e^{-x^{x^x}} dx",
        "(" * 3000 + "1" + ")" * 3000,
        "{" * 5000,
        "1" * 100_000,
        r"\frac{1}{" * 300 + "2" + "}" * 300,
        r"x^{x^{x^{x^{x}}}} = (x+1)^{1000}",
        "(x+y+z)^{200}",
        "\x00\ud800",
        r"\binom{10^9}{5 \cdot 10^8}",
        "=1 a" * 25_000,
        r"\text{" * 20_000 + "1" + "}" * 20_000,
        r"\boxed{" * 20_000 + "1" + "}" * 20_000,
    ]
    noise = ["".join(draw.choice(atoms) for _ in range(draw.randint(1, 60))) for _ in range(count - len(fixed))]
    return fixed + noise


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_five_hundred_adversarial_answers_cost_no_more_than_their_time_each() -> None:
    slowest = 0.0
    for text in adversarial(500):
        began = time.monotonic()
        grade = grade_answer({"answer": "70"}, f"\\boxed{{{text}}}")
        slowest = max(slowest, time.monotonic() - began)
        assert grade.score in (0.0, 1.0)
    assert slowest < TIME_LIMIT + 10  # 3.8 s where it was measured; a new process starts slowly on a busy machine
    assert equal("70", r"\frac{140}{2}") is True


def test_threads_do_not_get_each_others_verdicts() -> None:
    wrong: list[int] = []

    def ask(n: int) -> None:
        for k in range(5):
            if equal(str(n), rf"\frac{{{2 * (n + k % 2)}}}{{2}}") is not (k % 2 == 0):
                wrong.append(n)

    threads = [threading.Thread(target=ask, args=(n,)) for n in (3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_reasoning_is_not_graded() -> None:
    aime = get_benchmark("aime25")
    row = {"id": "1", "prompt": "?", "answer": "70"}
    assert aime.grade(row, "<think>\\boxed{70}</think> It is \\boxed{71}").score == 0
    assert aime.grade(row, "perhaps \\boxed{71}</think> It is \\boxed{70}").score == 1
    assert aime.grade(row, "<think>I get \\boxed{70} but let me check").score == 0
    assert strip_reasoning("<think>x</think>\n \n    return 1\n") == "    return 1"
    assert strip_reasoning("  <think>\nstill at it") == ""
    assert strip_reasoning("Wrap it in a <think> tag.") == "Wrap it in a <think> tag."


def test_the_real_aime_is_solved_by_its_answers_and_by_nothing_else() -> None:
    aime = get_benchmark("aime25")
    rows = aime.load(real("aime/matharena_aime_2025.jsonl"))
    assert len(rows) == 30 and rows.malformed == []
    for row in rows:
        assert aime.prompt(row)[0]["content"].endswith("\\boxed{}.")
        assert aime.grade(row, f"So it is $\\boxed{{{int(row['answer']):03d}}}$.").score == 1
        assert aime.grade(row, f"So it is $\\boxed{{{int(row['answer']) + 1}}}$.").score == 0


@pytest.mark.parametrize(("name", "path"), [("gsm8k", "gsm8k/test.jsonl"), ("svamp", "svamp/SVAMP.json")])
def test_real_word_problems_are_solved_by_their_answers(name: str, path: str) -> None:
    benchmark = get_benchmark(name)
    rows = benchmark.load(real(path))
    assert len(rows) == {"gsm8k": 1319, "svamp": 1000}[name]
    for row in rows:
        answer = row["answer"].rpartition("####")[2].strip()
        assert benchmark.grade(row, f"It comes to {answer} in all.").score == 1, row
        assert benchmark.grade(row, f"It comes to \\boxed{{{answer}1}} in all.").score == 0, row
