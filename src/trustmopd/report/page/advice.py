"""What to try next, where the numbers call for it."""

import math
import shlex

from trustmopd.recipe.rules import TRUST
from trustmopd.report.page.headline import nothing_shown, overlap, recovered
from trustmopd.report.readers.contents import as_commands
from trustmopd.report.statistics.comparison import UNIFORM, Comparison, Setting
from trustmopd.report.statistics.summary import Summary
from trustmopd.runs.layout import INITIAL

#: Below this share of the gap a student has learnt little; within this of uniform's mass a rule is close to uniform.
LITTLE = 0.25
NEAR_UNIFORM = 0.05
#: The losses of two batches may differ tenfold. But if every late loss is this many times every early one, the run
#: diverged.
DIVERGED = 2.0


def next_steps(comparison: Comparison) -> list[str]:
    said = [each for setting in comparison.settings for each in _on_scores(setting, comparison)]
    said += [each for run in comparison.runs for each in _on_loss(run)]
    if comparison.seeds == 1 and any(run.own_scores for run in comparison.runs):
        run = next(iter(comparison.trusting()), comparison.runs[0])
        others = [seed for seed in range(3) if seed != run.seed][:2]
        output = shlex.quote(f"output={run.path}-seeds")  # a run directory holds one seed
        command = as_commands(f"`trustmopd train RECIPE 'seeds={others}' {output}`", run.path)
        said.append(
            f"Train two more seeds, {command}, and score them the same way. One seed does not say how much of a "
            "difference is chance."
        )
    said += [each for run in comparison.trusting()[:1] for each in _on_allocation(run)]
    return list(dict.fromkeys(said))


def _on_scores(setting: Setting, comparison: Comparison) -> list[str]:
    shares = recovered(setting, comparison)
    if TRUST not in shares:
        return []
    said = []
    if UNIFORM not in shares:
        trust = next(iter(setting.methods[TRUST].values()))
        # It needs its own name, by which `trustmopd scores` identifies rows.
        changed = shlex.join(["name=uniform", f"output={trust.path}-uniform"])
        said.append(
            "Train the same with uniform weights, and score it: "
            + as_commands(f"`trustmopd train RECIPE allocation.rule=uniform {changed}`. ", trust.path)
            + f"Without it, how much trust added on '{setting.prompts}' is not known."
        )
    elif not overlap(setting, TRUST, UNIFORM) and shares[TRUST].mean <= shares[UNIFORM].mean:
        said.append(
            f"Trust did not beat uniform on '{setting.prompts}'. "
            + as_commands("`trustmopd diagnose RECIPE`", next(iter(setting.methods[TRUST].values())).path)
            + " says whether the scores tell these teachers apart. Specialists that drifted far, or that are near "
            "perfect, leave little to gain."
        )
    if nothing_shown(setting, TRUST) or overlap(setting, TRUST, UNIFORM):
        said.append(
            f"Score the students of '{setting.prompts}' on more than {setting.certainty(TRUST).prompts:,} prompts, or "
            "with more samples of each (`evaluation.samples=8`). `trustmopd scores` compares two students prompt by "
            "prompt, which shows smaller differences."
        )
    elif shares[TRUST].mean < LITTLE:
        said.append(
            f"The student recovered {shares[TRUST].mean:.0%} on '{setting.prompts}'. If the loss still falls, "
            "train longer or raise the learning rate."
        )
    return said


def _on_loss(run: Summary) -> list[str]:
    loss = run.finite("loss")
    quarter = len(loss) // 4
    start = run.evaluation.get(INITIAL, {}).get("overall", math.inf)
    gained = run.own_scores.get("overall", -math.inf) > start  # then the loss does not matter
    if gained or quarter < 3 or min(loss[-quarter:]) <= DIVERGED * max(loss[:quarter]):
        return []
    return [
        f"{run.path}: the loss never fell below {min(loss[-quarter:]):.3g} in the last quarter of the steps, and never "
        f"rose above {max(loss[:quarter]):.3g} in the first. The student may be moving away from its teachers: try a "
        "lower learning_rate."
    ]


def _on_allocation(run: Summary) -> list[str]:
    said = []
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
    if (clipped := run.mean_of("clipped") or 0.0) > 0.1:
        said.append(
            f"{clipped:.0%} of responses hit max_completion_length: raise it, or the end of answers is not taught."
        )
    if (mass := run.mean_of("student_mass") or 1.0) < 0.95:
        said.append(f"The candidates hold {mass:.1%} of the student's probability: raise num_candidates.")
    return said
