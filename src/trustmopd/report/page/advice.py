"""What to try next, where the numbers call for it."""

import math
import shlex
from collections.abc import Iterator

from trustmopd.recipe.rules import TRUST
from trustmopd.report.page.story import nothing_shown, overlap, recovered
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
    advice = [sentence for setting in comparison.settings for sentence in _on_scores(setting, comparison)]
    advice += [sentence for run in comparison.runs for sentence in _on_loss(run)]
    if comparison.seeds == 1 and any(run.own_scores for run in comparison.runs):
        run = next(iter(comparison.trusting()), comparison.runs[0])
        others = [seed for seed in range(3) if seed != run.seed][:2]
        output = shlex.quote(f"output={run.path}-seeds")  # a run directory holds one seed
        command = as_commands(f"`trustmopd train RECIPE 'seeds={others}' {output}`", run.path)
        advice.append(
            f"Train two more seeds, {command}, and score them the same way. One seed does not say how much of a "
            "difference is chance."
        )
    advice += [sentence for run in comparison.trusting()[:1] for sentence in _on_allocation(run)]
    return list(dict.fromkeys(advice))


def _on_scores(setting: Setting, comparison: Comparison) -> Iterator[str]:
    shares = recovered(setting, comparison)
    if TRUST not in shares:
        return
    path, together = next(iter(setting.methods[TRUST].values())).path, overlap(setting, TRUST, UNIFORM)
    if UNIFORM not in shares:
        # It needs its own name, by which `trustmopd scores` identifies rows.
        changed = shlex.join(["name=uniform", f"output={path}-uniform"])
        yield (
            "Train the same with uniform weights, and score it: "
            + as_commands(f"`trustmopd train RECIPE allocation.rule=uniform {changed}`. ", path)
            + f"Without it, how much trust added on '{setting.prompts}' is not known."
        )
    elif not together and shares[TRUST].mean <= shares[UNIFORM].mean:
        yield (
            f"Trust did not beat uniform on '{setting.prompts}'. "
            + as_commands("`trustmopd diagnose RECIPE`", path)
            + " says whether the scores tell these teachers apart. Specialists that drifted far, or that are near "
            "perfect, leave little to gain."
        )
    if nothing_shown(setting, TRUST) or together:
        yield (
            f"Score the students of '{setting.prompts}' on more than {setting.certainty(TRUST).prompts:,} prompts, or "
            "with more samples of each (`evaluation.samples=8`). `trustmopd scores` compares two students prompt by "
            "prompt, which shows smaller differences."
        )
    elif shares[TRUST].mean < LITTLE:
        yield (
            f"The student recovered {shares[TRUST].mean:.0%} on '{setting.prompts}'. If the loss still falls, "
            "train longer or raise the learning rate."
        )


def _on_loss(run: Summary) -> Iterator[str]:
    loss = run.finite("loss")
    quarter = len(loss) // 4
    start = run.evaluation.get(INITIAL, {}).get("overall", math.inf)
    gained = run.own_scores.get("overall", -math.inf) > start  # then the loss does not matter
    if not gained and quarter >= 3 and min(loss[-quarter:]) > DIVERGED * max(loss[:quarter]):
        yield (
            f"{run.path}: the loss never fell below {min(loss[-quarter:]):.3g} in the last quarter of the steps, and "
            f"never rose above {max(loss[:quarter]):.3g} in the first. The student may be moving away from its "
            "teachers: try a lower learning_rate."
        )


def _on_allocation(run: Summary) -> Iterator[str]:
    for name, group in run.allocation.items():
        if group.get("positive_margin", 1.0) < 0.5:
            yield (
                f"On '{name}' prompts its own teacher leads on only {group['positive_margin']:.0%} of rollouts: "
                "read a few of them in the token viewer before a longer run."
            )
        fair = len(group["needs"]) / max(1, len(run.teachers))
        if 1 < len(group["needs"]) < len(run.teachers) and group["relevant_mass"] < fair + NEAR_UNIFORM:
            yield (
                f"On '{name}' prompts the specialists they need got {group['relevant_mass']:.0%} of the weight, "
                f"close to uniform's {fair:.0%}: try a larger gamma in the viewer's slider."
            )
    if (clipped := run.mean_of("clipped") or 0.0) > 0.1:
        yield f"{clipped:.0%} of responses hit max_completion_length: raise it, or the end of answers is not taught."
    if (mass := run.mean_of("student_mass") or 1.0) < 0.95:
        yield f"The candidates hold {mass:.1%} of the student's probability: raise num_candidates."
