"""Word problems: the number that is taken from a response, and when it is the right one."""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import run
from shared_data import real

from trustmopd.evaluation import get_benchmark
from trustmopd.evaluation.graders.numeric import FLEXIBLE, STRICT, flexible_extract, grade_number, strict_extract

VERDICTS = [
    # reference, response, flexible-extract, strict-match
    ("18", "The answer is 18.", True, True),
    ("18", "So she has $18.00 in all.", True, False),
    ("18", r"It is \boxed{18}.", True, False),
    ("18", "The answer is 18. I took 3 steps.", False, True),
    ("18", "The answer is 20. No, the answer is 18.", True, False),
    ("18", "The answer is 18", True, False),  # the point of the pattern is any character: it reads 1
    ("18", "She has 17 eggs", False, False),
    ("18", "She has 18...", False, False),  # 18.. is left
    ("18", "no number", False, False),
    ("18", "", False, False),
    ("7", "7", True, False),
    ("-3", "It falls to -3 degrees", True, False),
    ("3", "It falls to -3 degrees", False, False),
    ("0.5", "It is .5", True, False),
    ("0.5", "The answer is 0.50.", True, True),
    ("1,200", "That makes 1200 dollars.", True, False),
    ("1200", "The answer is 1,200.", True, True),
    ("Janet sells 16 - 3 = <<16-3=13>>13 eggs.\n#### 1,018", "so 1018 eggs", True, False),
    ("51.0", "She pays 76 - 25 = 51 dollars.", True, False),
    ("0.00001", "It is 0.00001", True, False),
    ("1e-05", "It is 0.00001", True, False),
    ("9007199254740993", "9007199254740992", False, False),  # equal as floats
]


@pytest.mark.parametrize(("reference", "response", "flexible", "strict"), VERDICTS)
def test_a_number_passes_by_its_value(reference: str, response: str, flexible: bool, strict: bool) -> None:
    grade = grade_number({"answer": reference}, response)
    assert (grade.score, grade.details["strict_match"]) == (flexible, strict)


def test_what_is_extracted_is_what_lm_eval_extracts() -> None:
    extraction = pytest.importorskip("lm_eval.filters.extraction")
    spec = find_spec("lm_eval")
    assert spec is not None and spec.origin is not None
    task = yaml.safe_load((Path(spec.origin).parent / "tasks/gsm8k/gsm8k-cot-zeroshot.yaml").read_text())
    assert task["metric_list"][0]["regexes_to_ignore"] == [",", r"\$", "(?s).*#### ", r"\.$"]
    theirs = {each["name"]: {**each["filter"][0]} for each in task["filter_list"]}
    texts = [response for _, response, *_ in VERDICTS]
    texts += ["-", "$", "$5", "3,", "1.2.3", "10-3", "--5", "...", "¾ of ٣", "5\n6", "The answer is -1,5.0!"]
    for name, pattern, ours in (
        ("flexible-extract", FLEXIBLE, flexible_extract),
        ("strict-match", STRICT, strict_extract),
    ):
        arguments = theirs[name]
        assert arguments.pop("function") == "regex" and arguments["regex_pattern"] == pattern.pattern
        (found,) = extraction.RegexFilter(**arguments).apply([texts], [{}])
        assert [ours(text) or "[invalid]" for text in texts] == found


@pytest.mark.parametrize(("name", "path"), [("gsm8k", "gsm8k/test.jsonl"), ("svamp", "svamp/SVAMP.json")])
def test_real_word_problems_are_solved_by_their_answers(name: str, path: str) -> None:
    benchmark = get_benchmark(name)
    rows = benchmark.load(real(path))
    assert len(rows) == {"gsm8k": 1319, "svamp": 1000}[name] and rows.malformed == []
    for row in rows:
        answer = row["answer"].rpartition("####")[2].strip()
        assert benchmark.grade(row, f"It comes to {answer} in all.").score == 1, row
        assert benchmark.grade(row, f"It comes to \\boxed{{{answer}1}} in all.").score == 0, row
        if name == "gsm8k":
            assert benchmark.grade(row, row["answer"]).score == 1, row


def test_published_solutions_get_their_authors_verdicts() -> None:
    """openai/grade-school-math, example_model_solutions.jsonl: four models' answers to the test questions."""
    benchmark = get_benchmark("gsm8k")
    rows = benchmark.load(real("gsm8k/test.jsonl"))
    lines = real("gsm8k/example_model_solutions.jsonl").read_text(encoding="utf-8").splitlines()
    count = 0
    for row, line in zip(rows, map(json.loads, lines), strict=True):
        assert row["question"] == line["question"]
        for found in line.values():
            if isinstance(found, dict):
                count += 1
                assert benchmark.grade(row, found["solution"]).score == found["is_correct"], found
    assert count == 5276


def test_a_reference_that_is_no_number_is_told_when_rows_are_read(tmp_path: Path) -> None:
    rows = [{"question": "1 + 1?", "answer": answer} for answer in ("#### 2", "#### two", "1/2", "nan")]
    path = write(tmp_path / "mine.jsonl", rows)
    with pytest.warns(UserWarning, match="3 malformed"):
        found = get_benchmark("gsm8k").load(path)
    assert [row["answer"] for row in found] == ["#### 2"]
    with pytest.raises(ValueError, match="not a number"):
        grade_number({"answer": "1/2"}, "1/2")


@pytest.mark.parametrize("hostile", ["9", "-", ".", "$,", "1.", "-1", "The answer is ", "The answer is 1", "\ud800"])
def test_hostile_responses_are_graded_at_once(hostile: str) -> None:
    began = time.monotonic()
    assert grade_number({"answer": "70"}, hostile * 200_000).score == 0
    assert time.monotonic() - began < 20


def test_grading_numbers_loads_no_library() -> None:
    heavy = "{'torch', 'numpy', 'sympy'}"
    code = f"import trustmopd.evaluation.graders.numeric, sys; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def own(tmp_path: Path, *answers: Any) -> Any:
    rows = [{"id": str(i), "prompt": "?", "answer": answer} for i, answer in enumerate(answers)]
    benchmark = get_benchmark(str(write(tmp_path / "own.jsonl", rows)))
    return benchmark, benchmark.load()


def test_ones_own_set_of_numbers_needs_no_box(tmp_path: Path) -> None:
    benchmark, rows = own(tmp_path, 18, "1,200", "working\n#### $0.5", 0.00001)
    responses = ["I get 18.", "1200 in all", r"\boxed{.5}", "0.00001"]
    assert [benchmark.grade(*each).score for each in zip(rows, responses, strict=True)] == [1, 1, 1, 1]
    assert benchmark.grade(rows[0], r"\boxed{18}, in 3 steps").score == 0  # the last number


def test_ones_own_set_of_symbols_is_graded_by_the_box(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    benchmark, rows = own(tmp_path, r"\frac{x}{2}", "no solution", "working\n#### 1/2")
    responses = [r"\boxed{x/2}, 3 steps", r"\boxed{\text{no solution}}", r"\boxed{0.5}"]
    assert [benchmark.grade(*each).score for each in zip(rows, responses, strict=True)] == [1, 1, 1]
    assert benchmark.grade(rows[2], "It is 1/2").score == 0


def test_of_numbers_and_texts_each_row_is_graded_by_its_own_answer_and_this_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="'18 eggs'"):
        benchmark, rows = own(tmp_path, 18, "18 eggs", 19)
    responses = ["I get 18.", "18 eggs.", r"\boxed{19} eggs, or 20"]
    assert [benchmark.grade(*each).score for each in zip(rows, responses, strict=True)] == [1, 1, 0]
    assert benchmark.graders == "exact, number"


def test_both_figures_of_a_set_of_numbers_are_in_its_scores(world: Path, tmp_path: Path) -> None:
    path, out = world / "math_sums.jsonl", tmp_path / "out"
    command = ("evaluate", world / "student", "--benchmarks", path, "--max-new-tokens", 4, "--out", out)
    run(*command)
    responses, graded = out / "math_sums.responses.jsonl", out / "math_sums.jsonl"
    said = {"math0": "The answer is 1.", "math1": "It is 2", "math2": "The answer is 3. Yes, 5", "math3": ""}
    lines = [json.loads(line) for line in responses.read_text().splitlines()]
    write(responses, [{**line, "response": said[line["id"]]} for line in lines])
    graded.unlink()
    run(*command)
    verdicts = {entry["id"]: entry for entry in map(json.loads, graded.read_text().splitlines())}
    assert {key: entry["score"] for key, entry in verdicts.items()} == dict(zip(said, (1, 1, 0, 0), strict=True))
    assert [verdicts[key]["details"]["strict_match"] for key in said] == [True, False, True, False]
    assert verdicts["math2"]["extracted"] == "5"
    found = json.loads((out / "scores.json").read_text())["student"]["benchmarks"]["math_sums"]
    assert (found["score"], found["strict_match"]) == (0.5, 0.5)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
