"""A benchmark from outside the package: `FILE.py:NAME`, or `my.package:NAME`."""

import sys
from pathlib import Path

import pytest

from trustmopd.evaluation.benchmarks import get_benchmark, load_benchmarks

FILE = """
from trustmopd.evaluation import Benchmark, Grade
from lengths_of_words import right

BENCHMARKS = [
    Benchmark(
        name="lengths",
        domain="math",
        generated=lambda count: [{"word": "a" * n} for n in range(1, count + 1)],
        row=lambda source, place: {"id": str(place), "prompt": source["word"]},
        grader=lambda row, response: Grade(float(right(row["prompt"], response))),
    )
]
"""
HELPER = "def right(word, response): return response.strip() == str(len(word))\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a benchmark and what it imports. As under the command `trustmopd`, it is not on the path."""
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "lengths_of_words.py").write_text(HELPER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.delitem(sys.modules, "lengths_of_words", raising=False)


@pytest.mark.parametrize("name", ["mine.py:lengths", "mine:lengths"])
def test_a_file_of_ones_own_is_a_benchmark_and_imports_its_neighbours(name: str, here: None) -> None:
    sys.modules.pop("mine", None)
    (loaded,) = load_benchmarks([name], {}, limit=3)
    grades = [loaded.benchmark.grade(row, "2").score for row in loaded.rows]
    assert grades == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "fact"), [("mine.py:words", "lengths"), ("none.py:words", "none.py"), ("broken.py:words", "nowhere")]
)
def test_a_place_without_that_benchmark_is_named(name: str, fact: str, here: None) -> None:
    Path("broken.py").write_text("import nowhere_to_be_found")
    with pytest.raises(ValueError, match=fact) as error:
        get_benchmark(name)
    assert name.partition(":")[0] in str(error.value)
