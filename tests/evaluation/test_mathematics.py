"""Answers to mathematics: which one is taken, and when two are the same."""

import random
import threading
import time

import pytest
from shared_data import real

from trustmopd.evaluation import get_benchmark
from trustmopd.evaluation.graders.mathematics import TIME_LIMIT, equal, grade_answer, last_boxed
from trustmopd.evaluation.graders.reasoning import strip_reasoning

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
        (r"\boxed{ $70$ }", True),
        (r"\boxed{\frac{140}{2}}", True),
        (r"\boxed{70^\circ}", True),
        (r"\boxed{70\text{ degrees}}", True),
        (r"\boxed{x = 70}", True),
        (r"\boxed{12} no, \boxed{70}", True),
        (r"\boxed{70}. I checked 3 times, and put it within \boxed{}.", True),
        (r"\boxed{70} no, \boxed{12}", False),
        (r"\boxed{71}", False),
        (r"\boxed{-70}", False),
        (r"\boxed{700}", False),
        (r"\boxed{70.5}", False),
        (r"\boxed{70, 71}", False),
        (r"\boxed{x > 70}", False),
        (r"\boxed{}", False),
        ("The answer is 70.", False),  # without a box there is no answer
        ("", False),
    ],
)
def test_an_integer_passes_by_its_box(answer: str, right: bool) -> None:
    assert grade_answer({"answer": "70"}, answer).score == right


@pytest.mark.parametrize(
    ("reference", "answer", "same"),
    [
        ("1/2", "0.5", True),
        (r"\frac{1}{3}", "0.5", False),
        (r"\frac{\sqrt{8}}{2}", r"\sqrt{2}", True),
        (r"\{1, 2\}", r"\{2, 1\}", True),
        ("(1, 2)", "(2, 1)", False),
        ("2x + 1", "1 + 2x", True),
        ("2x + 1", "2x - 1", False),
        (r"\text{no solution}", "no solution", True),
        ("yes", r"\text{no}", False),
        ("B", r"\text{(B)}", True),
        ("B", "C", False),
    ],
)
def test_equal_means_mathematically_equal(reference: str, answer: str, same: bool) -> None:
    assert equal(reference, answer) is same


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
