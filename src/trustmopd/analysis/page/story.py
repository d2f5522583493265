"""The report's first sentences: did it work, which teacher helped where, what to try next. Each from the numbers."""

import math
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from trustmopd.analysis.page.headline import headlines, nothing_shown, overlap, recovered
from trustmopd.analysis.readers.run import as_commands
from trustmopd.analysis.statistics.comparison import FULL, UNIFORM, Comparison, Setting
from trustmopd.analysis.statistics.summary import Summary
from trustmopd.analysis.tables.titled import label_in, the_trusting

#: A share of the gap below which a student is said to have learnt little, and a mass near what uniform would give.
LITTLE = 0.25
NEAR_UNIFORM = 0.05
MORE_SEEDS = "Train two more seeds, `trustmopd train RECIPE 'seeds=SEEDS' OUTPUT`, and score them the same way."
#: A loss may differ tenfold between two batches; that all late ones are so much above all early ones is no chance.
DIVERGED = 2.0


def story(summaries: Sequence[Summary], comparison: Comparison) -> list[str]:
    return [*_stopped(summaries), *headlines(comparison), *_who_helped(comparison)]


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


def _loss(run: Summary) -> list[float]:
    return [value for value in run.series.get("loss", []) if math.isfinite(value)]


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


def _on_scores(setting: Setting, comparison: Comparison) -> list[str]:
    shares = recovered(setting, comparison)
    if FULL not in shares:
        return []
    said = []
    if UNIFORM not in shares:
        trust = next(iter(setting.methods[FULL].values()))
        # A name of its own: `trustmopd scores` tells rows apart by it.
        changed = shlex.join(["name=uniform", f"output={trust.path}-uniform"])
        said.append(
            "Train the same with uniform weights, and score it: "
            + as_commands(f"`trustmopd train RECIPE allocation.rule=uniform {changed}`. ", trust.path)
            + f"Without it, how much trust added on '{setting.prompts}' is not known."
        )
    elif not overlap(setting, FULL, UNIFORM) and shares[FULL].mean <= shares[UNIFORM].mean:
        said.append(
            f"Trust did not beat uniform on '{setting.prompts}'. "
            + as_commands("`trustmopd diagnose RECIPE`", next(iter(setting.methods[FULL].values())).path)
            + " says whether these teachers tell themselves apart; specialists that drifted far, or that are near "
            "perfect, leave little to win."
        )
    if nothing_shown(setting, FULL) or overlap(setting, FULL, UNIFORM):
        said.append(
            f"Score the students of '{setting.prompts}' on more than {setting.certainty(FULL).prompts:,} prompts, or "
            "with more samples of each (`evaluation.samples=8`). `trustmopd scores` compares two students prompt by "
            "prompt, which shows smaller differences."
        )
    elif shares[FULL].mean < LITTLE:
        said.append(
            f"The student recovered {shares[FULL].mean:.0%} on '{setting.prompts}'. If the loss still falls, "
            "train longer or raise the learning rate."
        )
    return said


def next_steps(summaries: Sequence[Summary], comparison: Comparison, more_seeds: str = MORE_SEEDS) -> list[str]:
    """Advice that these numbers call for; none where they call for none. `more_seeds` is how to train them."""
    said = [each for setting in comparison.settings for each in _on_scores(setting, comparison)]
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
        run = next(iter(the_trusting(comparison)), summaries[0])
        others = [seed for seed in range(3) if seed != run.seed][:2]
        output = shlex.quote(f"output={run.path}-seeds")  # a run directory holds one seed
        how = as_commands(more_seeds.replace("SEEDS", str(others)).replace("OUTPUT", output), run.path)
        said.append(f"{how} One seed does not say how much of a difference is chance.")
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
