"""Table of what was watched while students were trained."""

from trustmopd.report.statistics.comparison import Comparison
from trustmopd.report.tables.titled import NONE, Titled, titled
from trustmopd.runs.watched import best_of


def watched_table(comparison: Comparison) -> Titled:
    """Scores by which a checkpoint may have been chosen, so they are not those of an evaluation."""
    rows = []
    for run in comparison.runs:
        if best := best_of(run.watched):
            initial = [f"{100 * each.score:.1f}" for each in run.watched if not each.step]
            cells = [f"{100 * each.score:.1f} (step {each.step})" for each in (best, run.watched[-1])]
            name = f"{comparison.label(run)}, {run.method}, seed {run.seed}"
            rows.append([name, ", ".join(best.benchmarks), *(initial or [NONE]), *cells])
    note = (
        "Accuracy in percent on the same few held-out prompts each time, at the rollouts' temperature. By "
        "this mean over the watched benchmarks `save_best` chooses. The best of several scores is partly chance: "
        "compare students on an evaluation."
    )
    return titled("watched", "Watched while training", note, ("run", "watched", "initial", "best", "last"), rows)
