"""The comparison's cells: a prompt set, a method and a seed. Each is a run, and finished once it has its scores."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from trustmopd.quickstart.experiment import ALIASES, FROM_STUDENT, METHODS, PROMPT_SETS
from trustmopd.runs import RunDirectory
from trustmopd.runs.layout import SEED, seed_folder, student_folder
from trustmopd.runs.schemas import read_file

MOST_SEEDS = 100


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
        """None where the cell is not finished, or was scored by an earlier release, which wrote less."""
        path = self.run(out).scores
        try:
            return read_file(path, what="scores", remedy="").get(self.row)
        except (FileNotFoundError, ValueError):
            return None


def all_cells(seeds: Iterable[int], only: Sequence[str] = (), methods: Collection[str] = tuple(METHODS)) -> list[Cell]:
    """Every cell of the comparison. `only` keeps prompt sets and methods by name. Mixed prompts have no single label,
    so they cannot be routed."""
    known = (*PROMPT_SETS, *methods, *ALIASES)
    for name in only:
        if name not in known:
            raise ValueError(f"--only {name}: no such prompt set or method. Choose from {', '.join(known)}.")
    only = [ALIASES.get(name, name) for name in only]
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


def finished_cells(out: Path, methods: Iterable[str] = (*METHODS, *FROM_STUDENT)) -> dict[Cell, dict[str, Any]]:
    """Those below `out`, with their scores, in the order of the tables."""
    return {cell: scores for cell in begun_cells(out, methods) if (scores := cell.scores(out)) is not None}


def begun_cells(out: Path, methods: Iterable[str]) -> list[Cell]:
    """Those that have a folder below `out`, whatever their seeds, in the order of the tables."""
    found = {path.name.removeprefix(SEED) for path in (out / "runs").glob(f"*/*/{SEED}*")}
    seeds = {int(name) for name in found if name.isdecimal()}  # not of a copy such as seed-0-old
    every = [Cell(*each) for each in product(PROMPT_SETS, methods, sorted(seeds))]
    return [cell for cell in every if cell.run(out).path.is_dir()]


def parse_seeds(text: str) -> list[int]:
    """`5` is the seeds 0 to 4; `0,3,4` is those; `7,` is the seed 7."""
    text = text.strip()
    try:
        seeds = (
            [int(part) for part in text.rstrip(",").split(",")]
            if "," in text
            else list(range(min(int(text), MOST_SEEDS + 1)))
        )
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or max(seeds) >= 2**32 or len(set(seeds)) < len(seeds) or len(seeds) > MOST_SEEDS:
        raise ValueError(
            f"--seeds {text}: give how many (5, at most {MOST_SEEDS}), or different seeds from 0 to 2^32 − 1 (0,3,4). "
            "For one seed alone write 7,"
        )
    return seeds
