"""Draw what teachers of two bases recover beside those of one, from docs/results: `python benchmarks/plot_pools.py`."""

import csv
from pathlib import Path
from statistics import mean, stdev

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parent.parent / "docs"
PICTURE = DOCS / "images" / "two-bases-recovery.png"
RULES = ("trust", "response-level", "routed", "uniform")
#: Title → the file of its cells, and what its rows are called after the rule.
POOLS = {
    "one base": ("testbed-cells.csv", ""),
    "two bases, own references": ("two-bases-cells.csv", ""),
    "two bases, measured from the student": ("two-bases-cells.csv", "-from-student"),
}
COLOURS = ("#0072B2", "#009E73", "#E69F00")
HATCHES = ("", "..", "//")


def recovered(file: str, row: str) -> list[float]:
    """Percent by seed, on SingleCap."""
    with (DOCS / "results" / file).open() as opened:
        rows = csv.DictReader(opened)
        return [100 * float(r["recovery"]) for r in rows if (r["prompts"], r["method"]) == ("singlecap", row)]


def main() -> None:
    figure, axes = plt.subplots(figsize=(7.4, 3.9), layout="constrained")
    height = 0.26
    for place, (title, (file, suffix)) in enumerate(POOLS.items()):
        found = {at: recovered(file, rule + suffix) for at, rule in enumerate(RULES)}
        bars = [(at + (place - 1) * height, values) for at, values in found.items() if values]
        spread = [stdev(values) if len(values) > 1 else 0 for _, values in bars]
        axes.barh(
            [y for y, _ in bars],
            [mean(values) for _, values in bars],
            height=0.9 * height,
            xerr=spread,
            color=COLOURS[place],
            hatch=HATCHES[place],
            edgecolor="white",
            label=title,
        )
        for (y, values), wide in zip(bars, spread, strict=True):
            axes.text(max(0, mean(values)) + wide + 1.5, y, f"{mean(values):.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(RULES)), RULES)
    axes.invert_yaxis()
    axes.axvline(100, color="grey", linestyle=":")
    axes.set_xlabel("recovered share of the gap to the pool's own routed teachers, SingleCap, %")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(PICTURE, dpi=140)
    print(PICTURE)


if __name__ == "__main__":
    main()
