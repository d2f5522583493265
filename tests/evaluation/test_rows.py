"""Benchmark data: found, read, and refused."""

import gzip
import json
import warnings
from pathlib import Path

import pytest

from trustmopd.evaluation import Grade, Unavailable, get_benchmark
from trustmopd.evaluation.benchmark import Benchmark
from trustmopd.recipe.names import BENCHMARKS

pytestmark = pytest.mark.unit


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_benchmark_of_the_paper_and_the_small_ones_are_known() -> None:
    paper = {"aime25": 16, "aime26": 16, "lcb_v5": 5, "lcb_v6": 5, "ifeval": 1, "ifbench": 1}
    assert {name: get_benchmark(name).samples for name in paper} == paper
    small = {"gsm8k", "svamp", "mbpp", "humaneval", "lcb_release_v5", "lcb_release_v6"}
    worlds = {name for name in BENCHMARKS if name.startswith("testbed_")}
    assert {*paper, *small, *worlds} == {*BENCHMARKS} and len(worlds) == 6
    assert {get_benchmark(name).domain for name in paper} == {"math", "code", "if"}


def test_an_unknown_benchmark_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'aime24'.*aime25.*svamp"):
        get_benchmark("aime24")


def test_rows_are_read_as_those_of_prompts_and_asked_as_the_benchmark_asks(tmp_path: Path) -> None:
    rows = [{"id": f"p{i}", "problem": f"{i} + 1?", "answer": str(i + 1)} for i in range(3)]
    path = tmp_path / "set.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    aime = get_benchmark("aime25")
    found = aime.load(path)
    assert [row["id"] for row in found] == ["p0", "p1", "p2"]
    assert aime.prompt(found[1])[0]["content"].startswith("1 + 1?")
    assert len(aime.load(path, limit=2)) == 2
    with pytest.raises(ValueError, match=r"line 1: .*problem or question"):
        aime.load(write(tmp_path / "a.jsonl", [{}, {}]))


def test_of_a_folder_only_the_split_that_is_scored_is_read(tmp_path: Path) -> None:
    files = {"train_v1": 3, "test": 2, "test2": 1, "dev": 4, "train_test": 5}
    for name, count in files.items():
        rows = [{"id": f"{name}-{i}", "problem": "?", "answer": "1"} for i in range(count)]
        write(tmp_path / f"{name}.jsonl", rows)
    rows = get_benchmark("aime25").load(tmp_path)
    assert [row["id"] for row in rows] == ["test-0", "test-1", "test2-0"]
    assert [file.name for file in rows.files] == ["test.jsonl", "test2.jsonl"]
    for name in ("test", "test2"):
        (tmp_path / f"{name}.jsonl").unlink()
    with pytest.raises(ValueError, match=r"aime25.*'test'.*dev, train, train\+test"):
        get_benchmark("aime25").load(tmp_path)
    write(tmp_path / "more.jsonl", [{"id": "more", "problem": "?", "answer": "1"}])
    with pytest.raises(ValueError, match=r"aime25.*more\.jsonl"):
        get_benchmark("aime25").load(tmp_path)
    assert len(get_benchmark("aime25").load(tmp_path / "train_v1.jsonl")) == 3


def test_a_split_that_the_hub_calls_train_is_read_under_either_name(tmp_path: Path) -> None:
    row = {"prompt": "?", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    write(tmp_path / "train-00000-of-00001.jsonl", [{**row, "key": 1}])
    ifeval = get_benchmark("ifeval")
    assert len(ifeval.load(tmp_path)) == 1
    write(tmp_path / "IFEval_test.jsonl", [{**row, "key": 2}])
    assert [found["id"] for found in ifeval.load(tmp_path)] == ["2"]


def test_a_malformed_row_is_named_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "aime.jsonl"
    good = {"id": "a", "problem": "1 + 1?", "answer": 2}
    lines = [json.dumps(good), "{broken", json.dumps({"id": "b", "problem": "?"}), json.dumps(good), "[1]", ""]
    path.write_text("\n".join([*lines, json.dumps({**good, "id": "c"})]))
    with pytest.warns(UserWarning, match=r"4 malformed.*aime.jsonl, line 2: .*JSON"):
        rows = get_benchmark("aime25").load(path)
    assert [row["id"] for row in rows] == ["a", "c"]
    assert [each.partition(": ")[0].rpartition(" ")[2] for each in rows.malformed] == ["2", "3", "4", "5"]
    assert "answer" in rows.malformed[1] and "'a'" in rows.malformed[2]


def test_missing_data_say_which_file_or_hub_id_is_needed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="aime25: .*nowhere.jsonl"):
        get_benchmark("aime25").load(tmp_path / "nowhere.jsonl")
    with pytest.raises(FileNotFoundError, match=r"lighteval/code_generation_lite.* v5.*--data lcb_v5=FILE"):
        get_benchmark("lcb_v5").load()  # tests run offline


def test_a_users_own_set_brings_its_grader_by_its_fields(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "prompt": "2 + 2?", "answer": 4},
        {
            "id": "2",
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3 + 3?"}],
            "answer": 6,
        },
    ]
    own = get_benchmark(str(write(tmp_path / "sums.jsonl", rows)))
    first, second = own.load()
    assert (own.name, own.domain, own.samples) == ("sums", "math", 1)
    assert own.prompt(first) == [{"role": "user", "content": "2 + 2?"}]
    assert [message["role"] for message in own.prompt(second)] == ["system", "user"]
    assert own.grade(first, "I get 4.").score == 1 and own.grade(second, "I get 4.").score == 0
    other = [{"id": "1", "prompt": "f?", "tests": ["assert f(1) == 2"], "domain": "puzzles"}]
    assert get_benchmark(str(write(tmp_path / "code.jsonl", other))).domain == "puzzles"
    with pytest.raises(ValueError, match=r"none\.jsonl.* id, prompt.*`answer`"):
        get_benchmark(str(write(tmp_path / "none.jsonl", [{"id": "1", "prompt": "?"}])))


BAD_ROWS = [
    ({"answer": 1}, {"answer": None}, "answer"),
    ({"answer": 1}, {"answer": True}, "answer = True"),
    ({"answer": 1}, {"answer": " "}, "answer = ' '"),
    ({"answer": 1}, {"answer": 1, "prompt": ["hi"]}, "'hi'"),
    ({"answer": 1}, {"answer": 1, "prompt": [{"role": "user"}]}, "{'role': 'user'}"),
    ({"answer": 1}, {"answer": 1, "prompt": []}, "prompt"),
    ({"tests": ["assert f(1)"]}, {"tests": []}, "tests"),
    ({"tests": ["assert f(1)"]}, {"tests": ["# none"]}, "tests"),
    ({"tests": ["assert f(1)"]}, {"tests": ["assert f(1) =="]}, "tests"),
    ({"tests": ["assert f(1)"]}, {"tests": [1]}, "expected str"),
    ({"input_output": {"inputs": ["1"], "outputs": ["1"]}}, {"input_output": None}, "input_output = None"),
    ({"input_output": {"inputs": ["1"], "outputs": ["1"]}}, {"input_output": {"inputs": ["1"]}}, "'outputs'"),
    (
        {"input_output": json.dumps({"inputs": ["1"], "outputs": ["1"]})},
        {"input_output": {"inputs": [], "outputs": []}},
        "0 inputs",
    ),
    ({"input_output": {"inputs": ["1"], "outputs": ["1"]}}, {"input_output": {"inputs": [1], "outputs": ["1"]}}, "[1]"),
    (
        {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        {"instruction_id_list": ["punctuation:no_comma"]},
        "'kwargs'",
    ),
    (
        {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [None]},
        "kwargs",
    ),
    ({"answer": 1}, {"tests": ["assert f(1)"]}, "`answer`"),
    ({"answer": 1}, {"answer": 1, "domain": "code"}, "'math'"),
    ({"answer": 1, "domain": "a"}, {"answer": 1, "domain": "b"}, "'a'"),
]


@pytest.mark.parametrize(("good", "bad", "reason"), BAD_ROWS)
@pytest.mark.filterwarnings("ignore:benchmark")
def test_a_row_of_ones_own_that_cannot_be_graded_is_malformed(
    tmp_path: Path, good: dict[str, object], bad: dict[str, object], reason: str
) -> None:
    rows = [{"id": "1", "prompt": "?", **good}, {"id": "2", "prompt": "?", **bad}]
    found = get_benchmark(str(write(tmp_path / "own.jsonl", rows))).load()
    assert [row["id"] for row in found] == ["1"]
    (said,) = found.malformed
    assert "own.jsonl, line 2: " in said and reason in said


@pytest.mark.parametrize(
    ("names", "arguments", "reason"),
    [
        (["punctuation:no_coma"], [{}], "'punctuation:no_coma'"),
        ([7], [{}], " 7"),
        (["punctuation:no_comma"], [{"commas": 3}], "{'commas': 3}"),
    ],
)
@pytest.mark.filterwarnings("ignore:benchmark")
def test_an_instruction_that_no_checker_knows_is_a_malformed_row(
    tmp_path: Path, names: list[object], arguments: list[object], reason: str
) -> None:
    try:
        get_benchmark("ifeval").ready()
    except Unavailable as error:
        pytest.skip(str(error))
    good = {"id": "1", "prompt": "?", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"absent": None}]}
    bad = {**good, "id": "2", "instruction_id_list": names, "kwargs": arguments}
    found = get_benchmark(str(write(tmp_path / "own.jsonl", [good, bad]))).load()
    assert [row["id"] for row in found] == ["1"]
    assert "own.jsonl, line 2: " in found.malformed[0] and reason in found.malformed[0]


def test_rows_of_a_second_grader_are_told_in_one_sentence(tmp_path: Path) -> None:
    rows = [{"id": str(i), "prompt": "?", **({"tests": "f()"} if i % 2 else {"answer": 1})} for i in range(6)]
    with pytest.warns(UserWarning) as said:
        get_benchmark(str(write(tmp_path / "mixed.jsonl", rows))).load()
    (only,) = map(str, (each.message for each in said))
    assert only.count("`answer`") == 1 and "line 2 and 2 more: " in only


def test_tests_that_are_written_as_text_are_decoded(tmp_path: Path) -> None:
    tests = {"inputs": ["1"], "outputs": ["1"]}
    rows = [{"id": "1", "prompt": "?", "input_output": json.dumps(tests)}]
    assert get_benchmark(str(write(tmp_path / "own.jsonl", rows))).load()[0]["input_output"] == tests


def test_a_grader_that_raises_has_not_passed_and_says_why() -> None:
    def raising(row: object, response: str) -> Grade:
        raise ZeroDivisionError("oh")

    benchmark = Benchmark(name="x", domain="math", row=lambda source, number: source, grader=raising)
    grade = benchmark.grade({"id": "1", "prompt": ""}, "anything")
    assert grade == Grade(0.0, {"extracted": None, "error": "ZeroDivisionError: oh"})


def test_good_rows_give_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_benchmark("gsm8k").load(write(tmp_path / "a.jsonl", [{"question": "1 + 1?", "answer": "#### 2"}]))
