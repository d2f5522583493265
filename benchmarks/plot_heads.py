"""Draw how time and memory of the fused head grow, from results/heads.csv: `python benchmarks/plot_heads.py`."""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results" / "heads.csv"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "heads-sweep.png"
BASE = {"device": "cuda", "implementation": "fused", "hidden": "2048", "dtype": "bfloat16"}
AXES = {"tokens": "8192", "vocab": "128256", "candidates": "128", "teachers": "3"}
TITLES = {"tokens": "tokens, T", "vocab": "vocabulary, V", "candidates": "candidates, C", "teachers": "teachers, K"}


def points(axis: str) -> list[tuple[int, float, float]]:
    """One axis moves, the others stay. Rows of one version of everything: the last one with which the axis moved."""
    fixed = {**BASE, **{name: value for name, value in AXES.items() if name != axis}}
    with RESULTS.open() as file:
        rows = [row for row in csv.DictReader(file) if all(row[name] == value for name, value in fixed.items())]
    by_version: dict[str, dict[int, tuple[float, float]]] = {}
    for row in rows:
        found = by_version.setdefault(row["versions"], {})
        found[int(row[axis])] = float(row["milliseconds"]), float(row["extra_gib"])
    swept = [found for found in by_version.values() if len(found) > 1]
    if not swept:
        raise SystemExit(f"{RESULTS} has no sweep over {axis}: run bench_heads.py with several values of it.")
    return [(value, *measured) for value, measured in sorted(swept[-1].items())]


def main() -> None:
    figure, panels = plt.subplots(2, 4, figsize=(11, 4.6), layout="constrained")
    for column, axis in enumerate(AXES):
        values, milliseconds, gib = zip(*points(axis), strict=True)
        for row, (heights, label) in enumerate(((milliseconds, "ms"), (gib, "GiB beside gradients"))):
            panel = panels[row][column]
            panel.plot(values, heights, marker="o", color="#0072B2")
            panel.set_ylim(0)
            panel.set_xlim(0)
            panel.spines[["top", "right"]].set_visible(False)
            if column == 0:
                panel.set_ylabel(label)
        panels[1][column].set_xlabel(TITLES[axis])
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=130)
    print(PICTURE)


if __name__ == "__main__":
    main()
