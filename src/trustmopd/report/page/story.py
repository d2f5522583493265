"""The report's first sentences: did it work, and which teacher helped where. Each comes from the numbers."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from trustmopd.recipe.rules import TRUST
from trustmopd.report.page.headline import headlines
from trustmopd.report.statistics.comparison import Comparison
from trustmopd.report.statistics.summary import Summary
from trustmopd.util.messages import first_few


def story(comparison: Comparison) -> list[str]:
    return [*_stopped(comparison.runs), *headlines(comparison), *_who_helped(comparison)]


def _stopped(runs: Sequence[Summary]) -> list[str]:
    """Unfinished runs: a reader must know of them before the numbers."""
    stopped = [f"{run.path} at {run.stopped}" for run in runs if run.stopped]
    if not stopped:
        return []
    if len(runs) == 1:
        return [f"The run stopped at {runs[0].stopped}: these are the numbers of an unfinished run."]
    text = f"These runs did not finish: {first_few(stopped)}."
    return [f"{text} They are not averaged with finished runs, and their rows show the step."]


def _who_helped(comparison: Comparison) -> list[str]:
    said = []
    several = len(comparison.settings) > 1
    for run in comparison.trusting()[:4]:
        method = None if run.method == TRUST else run.method  # there may be several
        where = f"{comparison.label(run, method)}: " if several or method else ""
        matched = {g: entry for g, entry in run.allocation.items() if "positive_margin" in entry}
        mixed = {g: entry for g, entry in run.allocation.items() if len(entry["needs"]) > 1}
        if matched:
            parts = [
                f"'{own}' {entry['weights'][own]:.0%} (ahead on {entry['positive_margin']:.0%} of rollouts)"
                for entry in matched.values()
                for own in entry["needs"]
            ]
            said.append(
                f"{where}On prompts of its own domain, each teacher's share of the weight was: {', '.join(parts)}."
            )
        if mixed:
            mass = _over_rollouts(mixed.values(), [entry["relevant_mass"] for entry in mixed.values()])
            fair = _over_rollouts(mixed.values(), [len(entry["needs"]) / len(run.teachers) for entry in mixed.values()])
            said.append(
                f"{where}On prompts that need several specialists, those got {mass:.0%} of the weight (uniform: "
                f"{fair:.0%}), though no label said which."
            )
        if not matched and not mixed and len(run.teachers) > 1:
            every = run.allocation.values()
            mean = {t: _over_rollouts(every, [entry["weights"][t] for entry in every]) for t in run.teachers}
            parts = [f"'{teacher}' {weight:.0%}" for teacher, weight in mean.items()]
            said.append(f"{where}Mean weights over recorded rollouts: {', '.join(parts)}.")
    return said


def _over_rollouts(groups: Iterable[dict[str, Any]], means: Sequence[float]) -> float:
    """The mean over rollouts, from the means of groups."""
    return float(np.average(means, weights=[entry["rollouts"] for entry in groups]))
