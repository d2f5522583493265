"""One table, three formats."""

import csv
import io

import pytest

from trustmopd.util.text_tables import TextTable, text_table

pytestmark = pytest.mark.unit


def test_all_formats_hold_the_same_cells(tmp_path):
    table = text_table(("", "score", "n"), [("a_b & c|d", "56.7 ± 3.1 %", 5), ("γ", "–", 1)])
    assert table.to_markdown().splitlines()[2] == r"| a_b & c\|d | 56.7 ± 3.1 % | 5 |"
    assert list(csv.reader(io.StringIO(table.to_csv()))) == [list(table.header), *map(list, table.rows)]
    assert r"a\_b \& c|d & 56.7 $\pm$ 3.1 \% & 5 \\" in table.to_latex()
    assert table.to_latex().startswith(r"\begin{tabular}{lrr}")
    assert [path.name for path in table.write(tmp_path / "gamma-3.5")] == [
        "gamma-3.5.md",
        "gamma-3.5.csv",
        "gamma-3.5.tex",
    ]


def test_columns_of_words_are_set_left_where_they_are_named():
    table = text_table(("pool", "from", "rows"), [("a", "b", 1)], left=("from",))
    assert table.to_markdown().splitlines()[1] == "| --- | --- | ---: |"
    assert table.to_latex().startswith(r"\begin{tabular}{llr}")


def test_a_row_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"\b1\b.*\b2\b"):
        TextTable(("a", "b"), [("1",)])
