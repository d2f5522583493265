"""The report's first sentences: did it work, which teacher helped where, and what the scored prompts can and cannot
show. Each comes from the numbers."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from trustmopd.recipe.rules import TRUST
from trustmopd.report.readers.certainty import GAIN, Certainty
from trustmopd.report.statistics.comparison import UNIFORM, Comparison, Setting
from trustmopd.report.statistics.summary import Summary
from trustmopd.util.messages import first_few
from trustmopd.util.stats import Spread, spread

_TITLES = {UNIFORM: "uniform weights"}


def story(comparison: Comparison) -> list[str]:
    """Unfinished runs come first: a reader must know of them before the numbers."""
    several = len(comparison.settings) > 1
    sentences = _stopped(comparison.runs)
    for setting in comparison.settings:
        worked = _share(setting, comparison) or _scores(setting, comparison) or _change_of_loss(setting)
        sentences.append(f"{comparison.label(setting)}: {worked}" if several else worked)
    for run in comparison.trusting()[:4]:
        method = None if run.method == TRUST else run.method  # there may be several
        where = f"{comparison.label(run, method)}: " if several or method else ""
        sentences += [where + sentence for sentence in _who_helped(run)]
    return sentences


def recovered(setting: Setting, comparison: Comparison) -> dict[str, Spread]:
    """The share of the gap by method, over its seeds; only methods for which it is known."""
    shares = {method: comparison.recovered(setting, method) for method in setting.methods}
    return {method: spread(seeds.values()) for method, seeds in shares.items() if seeds}


def overlap(setting: Setting, one: str, other: str) -> bool:
    """Whether the intervals of two methods overlap; False if they are unknown. Recovery and gain come first: they
    exclude the noise in the initial student's score, so their intervals are narrower."""
    first, second = (setting.certainty(method).intervals for method in (one, other))
    for column in ("recovery", GAIN, "overall"):
        if (interval := first.get(column)) and (against := second.get(column)):
            return interval[0] <= against[1] and against[0] <= interval[1]
    return False


def nothing_shown(setting: Setting, method: str, column: str = "recovery") -> bool:
    """Whether the scored prompts cannot exclude that nothing was gained."""
    known = setting.certainty(method).intervals
    return column in known and ((interval := known[column]) is None or interval[0] <= 0 <= interval[1])


def _stopped(runs: list[Summary]) -> list[str]:
    stopped = [f"{run.path} at {run.stopped}" for run in runs if run.stopped]
    if not stopped:
        return []
    if len(runs) == 1:
        return [f"The run stopped at {runs[0].stopped}: these are the numbers of an unfinished run."]
    text = f"These runs did not finish: {first_few(stopped)}."
    return [f"{text} They are not averaged with finished runs, and their rows show the step."]


def _share(setting: Setting, comparison: Comparison) -> str | None:
    shares = recovered(setting, comparison)
    if not shares:
        return None
    method = TRUST if TRUST in shares else max(shares, key=lambda name: shares[name].mean)
    text = (
        f"With {_TITLES.get(method, method)} the student recovered {shares[method].mean:.0%} of the gap between where "
        f"it started and its teachers, each asked in its own domain{_sure(setting, method, shares[method])}"
    )
    if method == TRUST and UNIFORM in shares:
        more = _sure(setting, UNIFORM, shares[UNIFORM], prompts=False)
        text += f"; with {_TITLES[UNIFORM]} {shares[UNIFORM].mean:.0%}{more}"
    return " ".join([f"{text}.", *_doubts(setting, method, "recovery")])


def _sure(setting: Setting, method: str, share: Spread, *, prompts: bool = True) -> str:
    certainty = setting.certainty(method)
    parts = [f"± {share.sd:.0%} over {share.n} seeds"] if share.n > 1 else []
    if interval := certainty.intervals.get("recovery"):
        parts.append(f"95% interval {interval[0]:.0%} to {interval[1]:.0%}")
    parts += [_prompts(certainty)] if prompts else []
    return f" ({'; '.join(parts)})" if parts else ""


def _doubts(setting: Setting, method: str, column: str) -> Iterator[str]:
    """Conclusions that a reader might draw from the numbers, though the scored prompts do not support them."""
    if nothing_shown(setting, method, column):
        what, why = "that it gained anything", "the interval includes 0"
        if setting.certainty(method).intervals[column] is None:
            what, why = "how large this share is", "in some resamples of them there is no gap to recover"
        yield f"These prompts are too few to show {what}: {why}."
    if method == TRUST and overlap(setting, TRUST, UNIFORM):
        yield "They do not show that trust and uniform weights differ: the two intervals overlap."


def _scores(setting: Setting, comparison: Comparison) -> str | None:
    """The scores, if there is no recovery, and why there is none. None without scores."""
    overall = {method: setting.overall(method) for method in setting.methods}
    scores = {method: spread(seeds.values()).mean for method, seeds in overall.items() if seeds}
    if not scores:
        return None
    method = TRUST if TRUST in scores else max(scores, key=scores.__getitem__)
    certainty = setting.certainty(method)
    text = f"With {method} the student scores {100 * scores[method]:.1f} ({_prompts(certainty)})"
    if gains := comparison.gains(setting, method):
        text += f", {100 * spread(gains.values()).mean:+.1f} against the initial student"
        if interval := certainty.intervals.get(GAIN):
            text += f" (95% interval {100 * interval[0]:+.1f} to {100 * interval[1]:+.1f})"
    if method == TRUST and UNIFORM in scores:
        text += f"; with uniform weights {100 * scores[UNIFORM]:.1f}"
    why = f"Its share of the gap to its teachers is not known: {comparison.no_recovery(setting, method)}."
    return " ".join([f"{text}.", *_doubts(setting, method, GAIN), why])


def _prompts(certainty: Certainty) -> str:
    return f"{certainty.prompts:,} prompts" if certainty.prompts else "the number of prompts is not recorded"


def _change_of_loss(setting: Setting) -> str:
    """Its means over the first and last tenth of the steps."""
    for run in sorted(setting.runs, key=lambda run: run.method != TRUST):
        if loss := run.finite("loss"):
            window = max(1, len(loss) // 10)
            start, end = (sum(part) / window for part in (loss[:window], loss[-window:]))
            return (
                "There are no scores yet, so whether it worked is not known. "
                f"Under {run.method} the loss went from {start:.3g} to {end:.3g}."
            )
    return "There are neither scores nor metrics, so whether it worked is not known."


def _who_helped(run: Summary) -> Iterator[str]:
    groups = list(run.allocation.values())
    matched = [group for group in groups if "positive_margin" in group]
    mixed = [group for group in groups if len(group["needs"]) > 1]
    if matched:
        parts = [
            f"'{own}' {group['weights'][own]:.0%} (ahead on {group['positive_margin']:.0%} of rollouts)"
            for group in matched
            for own in group["needs"]
        ]
        yield f"On prompts of its own domain, each teacher's share of the weight was: {', '.join(parts)}."
    if mixed:
        mass = _over_rollouts(mixed, (group["relevant_mass"] for group in mixed))
        fair = _over_rollouts(mixed, (len(group["needs"]) / len(run.teachers) for group in mixed))
        yield (
            f"On prompts that need several specialists, those got {mass:.0%} of the weight (uniform: {fair:.0%}), "
            "though no label said which."
        )
    if not matched and not mixed and len(run.teachers) > 1:
        mean = {name: _over_rollouts(groups, (group["weights"][name] for group in groups)) for name in run.teachers}
        parts = [f"'{teacher}' {weight:.0%}" for teacher, weight in mean.items()]
        yield f"Mean weights over recorded rollouts: {', '.join(parts)}."


def _over_rollouts(groups: Iterable[Mapping[str, Any]], means: Iterable[float]) -> float:
    """The mean over rollouts, from the means of groups."""
    return float(np.average(list(means), weights=[group["rollouts"] for group in groups]))
