"""Tables, figures and report of the runs and scores below a folder, from files alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from studies.smollm2.prompt_sets import SETS
from trustmopd.evaluation.aggregation import score_entries, score_table
from trustmopd.evaluation.of_recipe import scored
from trustmopd.evaluation.read_graded import collect
from trustmopd.report.page.report import write_report
from trustmopd.report.readers.run import find_runs
from trustmopd.runs import RunDirectory
from trustmopd.runs.layout import TABLES
from trustmopd.util.files import write_text
from trustmopd.util.text_tables import text_table

#: Folders of scores: they share no prompts, so each has a table.
SCORED = {
    "evaluation": "Held-out prompts of one domain",
    "mixed": "Mixed prompts",
    "public": "Public benchmarks",
}
#: Tables of the report that the page shows.
_SHOWN = {"scores_before": "Before training", "allocation": "Where the weight went", "cost": "Cost"}
#: Its base is read in float32, so the report would take it for the student of another.
_ONLY_SCORES = "full-weights"


def write_results(out: Path) -> Path:
    """`results.md` with the tables; those of scores are also in each folder of scores, all others beside the report."""
    runs = [run for run in find_runs([out / "runs"]) if _ONLY_SCORES not in run.path.parts]
    write_report(runs, out, title="The paper's comparison with SmolLM2-135M")
    parts = [f"## {title}\n\n{table.strip()}\n" for title, table in _tables(out)]
    return write_text(out / "results.md", "\n".join(parts))


def _tables(out: Path) -> Iterator[tuple[str, str]]:
    """Those that there is something for, with their titles."""
    for folder, title in SCORED.items():
        if collect([out / folder])[0]:
            yield title, score_table(scored([out / folder], out / folder).scores).to_markdown()
    if ahead := list(_ahead(out / "evaluation")):
        yield "Trust against every other rule", text_table(("rule", "trust ahead", "seeds"), ahead).to_markdown()
    if losses := {float(run.name.removeprefix("lr-")): last_loss(run) for run in (out / "sweep").glob("lr-*")}:
        rows = [(f"{rate:g}", f"{losses[rate]:.4f}") for rate in sorted(losses)]
        yield "Learning rate", text_table(("learning rate", "loss"), rows).to_markdown()
    for name, title in _SHOWN.items():
        if (file := out / TABLES / f"{name}.md").is_file():
            yield title, file.read_text(encoding="utf-8")


def last_loss(run: Path) -> float:
    """The mean over the last quarter of the steps."""
    lines = map(json.loads, RunDirectory(run).metrics.read_text(encoding="utf-8").splitlines())
    losses = [line["loss"] for line in lines if "loss" in line]
    return mean(losses[-max(1, len(losses) // 4) :])


def _ahead(evaluation: Path) -> Iterator[tuple[str, str, str]]:
    """Trust's overall score minus that of every other rule, over the seeds that both have."""
    graded, _ = collect([evaluation])
    for trust in (f"{prompts}-trust" for prompts in SETS if f"{prompts}-trust" in graded):
        for other in (row for row in graded if row.startswith(trust.removesuffix("trust")) and row != trust):
            if seeds := graded[trust].keys() & graded[other].keys():
                both = {row: {seed: graded[row][seed] for seed in seeds} for row in (trust, other)}
                lead = score_entries(both, against=other)[trust]["difference"]
                low, high = (100 * end for end in lead["interval"])
                yield other, f"{100 * lead['overall']:+.1f} [{low:+.1f}, {high:+.1f}]", str(lead["n"])
