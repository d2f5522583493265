"""A table of text that prints as Markdown, CSV or LaTeX: one record, three formats, the same cells in each."""

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trustmopd.util.files import write_text

_LATEX = str.maketrans(
    {
        **{character: rf"\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "−": "$-$",
        "–": "--",
        "Δ": r"$\Delta$",
        "γ": r"$\gamma$",
        "μ": r"$\mu$",
        "≥": r"$\ge$",
        "≤": r"$\le$",
        "→": r"$\to$",
    }
)


@dataclass(frozen=True)
class TextTable:
    """The first column names the rows and is set left, and so are the columns named in `left`, which hold words; the
    others hold figures and are set right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"a row of {len(row)} cells under {len(self.header)} columns: {list(row)}")

    @property
    def is_left(self) -> list[bool]:
        return [place == 0 or name in self.left for place, name in enumerate(self.header)]

    def to_markdown(self) -> str:
        align = ["---" if left else "---:" for left in self.is_left]
        lines = (
            [cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in (self.header, align, *self.rows)
        )
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def to_csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows((self.header, *self.rows))
        return text.getvalue()

    def to_latex(self) -> str:
        """Rules as in the booktabs package."""
        head, *body = (" & ".join(map(_latex, row)) + r" \\" for row in (self.header, *self.rows))
        columns = "".join("l" if left else "r" for left in self.is_left)
        lines = (rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule")
        return "\n".join((*lines, r"\end{tabular}", ""))

    def write(self, stem: Path) -> list[Path]:
        """`stem`.md, .csv and .tex."""
        texts = {".md": self.to_markdown(), ".csv": self.to_csv(), ".tex": self.to_latex()}
        return [write_text(stem.with_name(stem.name + suffix), text) for suffix, text in texts.items()]


def text_table(header: Iterable[str], rows: Iterable[Iterable[object]], left: Collection[str] = ()) -> TextTable:
    return TextTable(tuple(header), tuple(tuple(str(cell) for cell in row) for row in rows), left)


def _latex(cell: str) -> str:
    return cell.translate(_LATEX).replace("\n", " ")
