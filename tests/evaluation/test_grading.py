"""Grading in processes of their own: a grader may do anything, and costs at most its own row."""

import time
from functools import partial

import psutil
import pytest

from trustmopd.evaluation.grading import GradingPool, grade_row
from trustmopd.recipe import QuestionFile

GRADERS = """
import os, sys, time

def length(row, response):
    return len(response) / 10

def raises(row, response):
    raise KeyError("answer")

def hangs(row, response):
    time.sleep(600)

def leaves(row, response):
    sys.exit(3)

def dies(row, response):
    os._exit(3)

def not_a_number(row, response):
    return float("nan")

def says(row, response):
    print("1.0")
    return "yes"

def forks(row, response):
    os.fork()
    return len(response) / 10

def forks_and_leaves(row, response):
    if os.fork():
        os._exit(0)
    return 1.0

def starts(row, response):
    from subprocess import Popen
    Popen(["sleep", "987"])
    return 1.0
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """What grades a row by one of the graders above."""
    folder = tmp_path_factory.mktemp("graders")
    (folder / "mine.py").write_text(GRADERS)
    (folder / "rows.jsonl").write_text('{"prompt": "Go on."}\n')

    def grader(name):
        benchmark = QuestionFile(path=str(folder / "rows.jsonl"), grader=f"{folder / 'mine.py'}:{name}")
        return partial(grade_row, benchmark, {"id": "0"})

    return grader


@pytest.fixture(scope="module")
def graded_by(own):
    """Submits a response to one of these graders."""
    pool = GradingPool(2, limit=2.0)
    yield lambda name, response="12345": pool.submit(own(name), response)
    pool.close()


def test_each_grade_belongs_to_its_response(graded_by):
    waiting = [graded_by("length", "x" * number) for number in range(20)]
    assert [each.result().score for each in waiting] == [number / 10 for number in range(20)]


@pytest.mark.parametrize("name", ["raises", "leaves", "dies", "not_a_number", "says", "forks_and_leaves"])
def test_a_grader_that_fails_costs_its_own_row(graded_by, name):
    failed, others = graded_by(name), [graded_by("length") for _ in range(4)]
    assert failed.result().score is None and failed.result().problem
    assert [each.result().score for each in others] == [0.5] * 4


def test_a_grader_that_hangs_is_ended_and_the_others_go_on(graded_by):
    began = time.monotonic()
    stuck, others = graded_by("hangs"), [graded_by("length") for _ in range(4)]
    assert [each.result().score for each in others] == [0.5] * 4
    assert stuck.result().score is None and "2 s" in stuck.result().problem
    assert time.monotonic() - began < 60
    assert graded_by("length").result().score == 0.5


def test_a_grader_that_forks_answers_once(graded_by):
    waiting = [graded_by("forks", "x" * number) for number in range(6)]
    assert [each.result().score for each in waiting] == [number / 10 for number in range(6)]


def test_closing_ends_what_graders_do_and_have_started(own):
    others = {each.pid for each in psutil.Process().children(recursive=True)}
    pool = GradingPool(2)
    assert pool.submit(own("starts"), "").result().score == 1.0
    stuck = pool.submit(own("hangs"), "")
    began = time.monotonic()
    while True:  # a child is another program only some time after it was started
        started = [each for each in psutil.Process().children(recursive=True) if each.pid not in others]
        if any("987" in each.cmdline() for each in started):
            break
        assert time.monotonic() - began < 30
        time.sleep(0.05)
    began = time.monotonic()
    pool.close()
    assert stuck.result().score is None and time.monotonic() - began < 10
    psutil.wait_procs(started, timeout=1)
    assert not [each for each in started if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert pool.submit(own("length"), "12345").result().score == 0.5  # it can be used again
    pool.close()


def test_own_rows_are_graded_as_in_an_evaluation(tmp_path):
    rows = tmp_path / "sums.jsonl"
    rows.write_text('{"prompt": "6 + 1", "answer": "7"}\n{"prompt": "2 + 1", "answer": "3"}\n')
    pool = GradingPool(1)
    row = {"answer": "7", "grader": "number"}
    scores = [pool.submit(partial(grade_row, str(rows)), row, text).result().score for text in ("It is 7.", "3")]
    pool.close()
    assert scores == [1.0, 0.0]
