"""The comparison's cells: a prompt set, a row and a seed. Each is a run, and finished once it has its scores."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trustmopd.quickstart.tasks import DOMAINS
from trustmopd.runs import RunDirectory
from trustmopd.runs.layout import SEED, seed_folder, student_folder
from trustmopd.runs.schemas import read_file

PROMPT_SETS = ("singlecap", "multicap")
#: The rows of the paper's tables, as a recipe's `allocation`.
METHODS: dict[str, dict[str, Any]] = {
    "trust": {},
    "uniform": {"rule": "uniform"},
    "random": {"rule": "random"},
    **{f"single-{domain}": {"rule": "single", "teacher": domain} for domain in DOMAINS},
    "routed": {"rule": "routed"},
    "likelihood": {"score": "likelihood"},
    "negative-entropy": {"score": "negative_entropy"},
    "teacher-student-kl": {"score": "teacher_student_kl"},
    "without-mu": {"calibrated": False},
    "response-level": {"granularity": "response"},
    **{f"gamma-{gamma}": {"gamma": float(gamma)} for gamma in (3, 5, 9)},
}
#: The end of a row's name in which all teachers are measured from the initial student.
FROM_STUDENT = "-from-student"
#: Rows of a pool whose teachers grew from several bases.
OF_TWO_BASES = {name: METHODS[name] for name in ("trust", "uniform", "routed", "response-level")} | {
    name + FROM_STUDENT: METHODS[name] for name in ("trust", "response-level")
}


@dataclass(frozen=True, order=True)
class Cell:
    prompts: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.prompts}/{self.method}/{seed_folder(self.seed)}"

    @property
    def row(self) -> str:
        """Its row of scores, which it shares with the other seeds."""
        return f"{self.prompts}-{self.method}"

    @property
    def responses(self) -> str:
        return student_folder(self.row, self.seed)

    def run(self, out: Path) -> RunDirectory:
        return RunDirectory(out / "runs" / self.name)

    def scores(self, out: Path) -> dict[str, Any] | None:
        """None where the cell is not finished, or its file is damaged."""
        try:
            return read_file(self.run(out).scores, what="scores", remedy="").get(self.row)
        except (FileNotFoundError, ValueError):
            return None


def all_cells(seeds: Iterable[int], methods: Collection[str], only: Sequence[str] = ()) -> list[Cell]:
    """Every cell of the comparison. `only` keeps prompt sets and methods by name. Mixed prompts have no single label,
    so no row that goes by it."""
    known = (*PROMPT_SETS, *methods)
    for name in only:
        if name not in known:
            raise ValueError(f"--only {name}: no such prompt set or method. Choose from {', '.join(known)}.")
    sets = [name for name in PROMPT_SETS if name in only] or PROMPT_SETS
    methods = [name for name in methods if name in only] or methods
    cells = [
        Cell(prompts, method, seed)
        for seed in seeds
        for prompts in sets
        for method in methods
        if not (prompts == "multicap" and method == "routed")
    ]
    if not cells:
        raise ValueError(f"--only {' --only '.join(only)} leaves nothing to run: mixed prompts cannot be routed.")
    return cells


def finished_cells(out: Path) -> dict[Cell, dict[str, Any]]:
    """Those below `out`, whatever their seeds, with their scores, in the order of the tables."""
    names = {path.name.removeprefix(SEED) for path in (out / "runs").glob(f"*/*/{SEED}*")}
    seeds = sorted(int(name) for name in names if name.isdecimal())  # not of a copy such as seed-0-old
    cells = [
        Cell(prompts, method, seed)
        for prompts in PROMPT_SETS
        for method in {**METHODS, **OF_TWO_BASES}
        for seed in seeds
    ]
    return {cell: scores for cell in cells if (scores := cell.scores(out)) is not None}
