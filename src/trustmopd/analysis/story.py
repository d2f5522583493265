"""The report's first sentences: did it work, which teacher helped where, what to try next. Each from the numbers."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from trustmopd.analysis.cells import label_in, the_trusting
from trustmopd.analysis.compare import FULL, UNIFORM, Comparison, Setting
from trustmopd.analysis.summary import Summary
from trustmopd.statistics import spread

#: A share of the gap below which a student is said to have learnt little, and a mass near what uniform would give.
LITTLE = 0.25
NEAR_UNIFORM = 0.05
#: A loss may differ tenfold between two batches; that all late ones are so much above all early ones is no chance.
DIVERGED = 2.0


def story(summaries: Sequence[Summary], comparison: Comparison) -> list[str]:
    return [*_stopped(summaries), *_did_it_work(comparison), *_who_helped(comparison)]


def _stopped(summaries: Sequence[Summary]) -> list[str]:
    """Unfinished runs, which a reader must know of before the numbers."""
    stopped = [f"{run.path} stopped at {run.stopped}" for run in summaries if run.stopped]
    if not stopped:
        return []
    if len(summaries) == 1:
        return [f"The run stopped at {summaries[0].stopped}: these are the numbers of an unfinished run."]
    more = f", and {len(stopped) - 5} more did not finish" if len(stopped) > 5 else ""
    return [
        f"{', '.join(stopped[:5])}{more}. No unfinished run is averaged with a finished one; its rows say the step."
    ]


def _did_it_work(comparison: Comparison) -> list[str]:
    said = []
    for setting in comparison.settings:
        recovered = _recovered(setting, comparison)
        where = f"{label_in(comparison)(setting)}: " if len(comparison.settings) > 1 else ""
        if FULL in recovered:
            text = (
                f"{where}With trust the student recovered {recovered[FULL]:.0%} of the gap between where it started "
                "and its teachers, each asked in its own domain"
            )
            if UNIFORM in recovered:
                text += f"; with uniform weights {recovered[UNIFORM]:.0%}"
            said.append(f"{text}.")
        elif recovered:
            best = max(recovered, key=recovered.__getitem__)
            said.append(f"{where}The student trained with {best} recovered {recovered[best]:.0%} of the gap.")
        else:
            said.append(where + (_scores_alone(setting, comparison) or _change_of_loss(setting)))
    return said


def _scores_alone(setting: Setting, comparison: Comparison) -> str | None:
    """Scores from which no recovery follows, and why; None without scores."""
    overall = {method: setting.overall(method) for method in setting.methods}
    scores = {method: spread(list(found.values())).mean for method, found in overall.items() if found}
    if not scores:
        return None
    method = FULL if FULL in scores else max(scores, key=scores.__getitem__)
    gains = comparison.gains(setting, method)
    text = f"With {method} the student scores {100 * scores[method]:.1f}"
    if gains:
        text += f", {100 * spread(list(gains.values())).mean:+.1f} on where it started"
    if method == FULL and UNIFORM in scores:
        text += f"; with uniform weights {100 * scores[UNIFORM]:.1f}"
    why = comparison.no_recovery(setting, method)
    return f"{text}. What share of the gap to its teachers that is, is not known: {why}."


def _recovered(setting: Setting, comparison: Comparison) -> dict[str, float]:
    return {
        method: spread(list(found.values())).mean
        for method in setting.methods
        if (found := comparison.recovered(setting, method))
    }


def _change_of_loss(setting: Setting) -> str:
    by_trust_first = sorted(setting.methods.items(), key=lambda item: item[0] != FULL)
    for method, run in ((method, run) for method, seeds in by_trust_first for run in seeds.values()):
        if ends := _ends_of_loss(run):
            return (
                f"No scores yet, so whether it worked is not known: under {method} the loss went from {ends[0]:.3g} to "
                f"{ends[1]:.3g}."
            )
    return "There are neither scores nor metrics, so whether it worked is not known."


def _loss(run: Summary) -> list[float]:
    return [value for value in run.series.get("loss", []) if math.isfinite(value)]


def _ends_of_loss(run: Summary) -> tuple[float, float] | None:
    """Its means over the first and the last tenth of the steps."""
    loss = _loss(run)
    window = max(1, len(loss) // 10)
    return (sum(loss[:window]) / window, sum(loss[-window:]) / window) if loss else None


def _who_helped(comparison: Comparison) -> list[str]:
    said = []
    label, several = label_in(comparison), len(comparison.settings) > 1
    for run in the_trusting(comparison)[:4]:
        method = None if run.method == FULL else run.method  # there may be several
        where = f"{label(run, method)}: " if several or method else ""
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
    """The mean over rollouts, from those of groups of them."""
    return float(np.average(means, weights=[entry["rollouts"] for entry in groups]))


def next_steps(summaries: Sequence[Summary], comparison: Comparison) -> list[str]:
    """Advice that these numbers call for; none where they call for none."""
    said: list[str] = []
    for setting in comparison.settings:
        recovered = _recovered(setting, comparison)
        if FULL in recovered and UNIFORM not in recovered:
            said.append(
                f"Train the same recipe with allocation.rule=uniform on {setting.prompts}: without that control, how "
                "much trust added is not known."
            )
        elif FULL in recovered and recovered[FULL] <= recovered[UNIFORM]:
            said.append(
                f"Trust did not beat uniform on {setting.prompts}. `trustmopd diagnose RECIPE` says whether these "
                "teachers tell themselves apart; specialists that drifted far, or that are near perfect, leave little "
                "to win."
            )
        if FULL in recovered and recovered[FULL] < LITTLE:
            said.append(
                f"The student recovered {recovered[FULL]:.0%} on {setting.prompts}. If the loss still falls, "
                "train longer or raise the learning rate."
            )
    for run in summaries:
        loss = _loss(run)
        quarter = len(loss) // 4
        start = run.evaluation.get("initial", {}).get("overall", math.inf)
        gained = run.own_scores.get("overall", -math.inf) > start  # whatever its loss did
        if not gained and quarter > 2 and min(loss[-quarter:]) > DIVERGED * max(loss[:quarter]):
            said.append(
                f"{run.path}: the loss never fell below {min(loss[-quarter:]):.3g} in the last quarter of the steps, "
                f"and never rose above {max(loss[:quarter]):.3g} in the first. The student may be moving away from its "
                "teachers: try a lower learning_rate."
            )
    if 0 < comparison.seeds < 2 and any(run.own_scores for run in summaries):
        said.append("Train more seeds (seeds=[0, 1, 2]): one seed does not say how much of a difference is chance.")
    for run in the_trusting(comparison)[:1]:
        for group, entry in run.allocation.items():
            if entry.get("positive_margin", 1.0) < 0.5:
                said.append(
                    f"On '{group}' prompts its own teacher leads on only {entry['positive_margin']:.0%} of rollouts: "
                    "read a few of them in the token viewer before a longer run."
                )
            fair = len(entry["needs"]) / max(1, len(run.teachers))
            if 1 < len(entry["needs"]) < len(run.teachers) and entry["relevant_mass"] < fair + NEAR_UNIFORM:
                said.append(
                    f"On '{group}' prompts the specialists they need got {entry['relevant_mass']:.0%} of the weight, "
                    f"close to uniform's {fair:.0%}: try a larger gamma in the viewer's slider."
                )
        clipped = run.mean_of("clipped")
        if clipped and clipped > 0.1:
            said.append(
                f"{clipped:.0%} of responses hit max_completion_length: raise it, or the end of answers is not taught."
            )
        mass = run.mean_of("student_mass")
        if mass and mass < 0.95:
            said.append(f"The candidates hold {mass:.1%} of the student's probability: raise num_candidates.")
    return list(dict.fromkeys(said))
