"""Did it work? The report's first sentence for each setting, and what the scored prompts can and cannot show."""

from trustmopd.recipe.rules import TRUST
from trustmopd.report.readers.certainty import GAIN, Certainty
from trustmopd.report.statistics.comparison import UNIFORM, Comparison, Setting
from trustmopd.report.statistics.summary import Summary
from trustmopd.util.stats import Spread, spread

_TITLES = {UNIFORM: "uniform weights"}


def headlines(comparison: Comparison) -> list[str]:
    said = []
    for setting in comparison.settings:
        where = f"{comparison.label(setting)}: " if len(comparison.settings) > 1 else ""
        said.append(where + (_share(setting, comparison) or _scores(setting, comparison) or _change_of_loss(setting)))
    return said


def recovered(setting: Setting, comparison: Comparison) -> dict[str, Spread]:
    """The share of the gap by method, over its seeds; only methods for which it is known."""
    found = {method: comparison.recovered(setting, method) for method in setting.methods}
    return {method: spread(list(seeds.values())) for method, seeds in found.items() if seeds}


def overlap(setting: Setting, one: str, other: str) -> bool:
    """Whether the intervals of two methods overlap; False if they are unknown. Recovery and gain come first: they
    exclude the noise in the initial student's score, so their intervals are narrower."""
    first, second = (setting.certainty(method).intervals for method in (one, other))
    for column in ("recovery", GAIN, "overall"):
        if (ours := first.get(column)) and (theirs := second.get(column)):
            return ours[0] <= theirs[1] and theirs[0] <= ours[1]
    return False


def nothing_shown(setting: Setting, method: str, column: str = "recovery") -> bool:
    """Whether the scored prompts cannot exclude that nothing was gained."""
    known = setting.certainty(method).intervals
    return column in known and ((interval := known[column]) is None or interval[0] <= 0 <= interval[1])


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


def _doubts(setting: Setting, method: str, column: str) -> list[str]:
    """Conclusions that a reader might draw from the numbers, though the scored prompts do not support them."""
    said = []
    if nothing_shown(setting, method, column):
        what, why = "that it gained anything", "the interval includes 0"
        if setting.certainty(method).intervals[column] is None:
            what, why = "how large this share is", "in some resamples of them there is no gap to recover"
        said.append(f"These prompts are too few to show {what}: {why}.")
    if method == TRUST and overlap(setting, TRUST, UNIFORM):
        said.append("They do not show that trust and uniform weights differ: the two intervals overlap.")
    return said


def _scores(setting: Setting, comparison: Comparison) -> str | None:
    """The scores, if there is no recovery, and why there is none. None without scores."""
    overall = {method: setting.overall(method) for method in setting.methods}
    scores = {method: spread(list(found.values())).mean for method, found in overall.items() if found}
    if not scores:
        return None
    method = TRUST if TRUST in scores else max(scores, key=scores.__getitem__)
    certainty = setting.certainty(method)
    text = f"With {method} the student scores {100 * scores[method]:.1f} ({_prompts(certainty)})"
    if gains := comparison.gains(setting, method):
        text += f", {100 * spread(list(gains.values())).mean:+.1f} against the initial student"
        if interval := certainty.intervals.get(GAIN):
            text += f" (95% interval {100 * interval[0]:+.1f} to {100 * interval[1]:+.1f})"
    if method == TRUST and UNIFORM in scores:
        text += f"; with uniform weights {100 * scores[UNIFORM]:.1f}"
    why = f"Its share of the gap to its teachers is not known: {comparison.no_recovery(setting, method)}."
    return " ".join([f"{text}.", *_doubts(setting, method, GAIN), why])


def _prompts(certainty: Certainty) -> str:
    return f"{certainty.prompts:,} prompts" if certainty.prompts else "the number of prompts is not recorded"


def _change_of_loss(setting: Setting) -> str:
    by_trust_first = sorted(setting.methods.items(), key=lambda item: item[0] != TRUST)
    for method, run in ((method, run) for method, seeds in by_trust_first for run in seeds.values()):
        if ends := _ends_of_loss(run):
            return (
                "There are no scores yet, so whether it worked is not known. "
                f"Under {method} the loss went from {ends[0]:.3g} to {ends[1]:.3g}."
            )
    return "There are neither scores nor metrics, so whether it worked is not known."


def _ends_of_loss(run: Summary) -> tuple[float, float] | None:
    """Its means over the first and last tenth of the steps."""
    loss = run.finite("loss")
    window = max(1, len(loss) // 10)
    return (sum(loss[:window]) / window, sum(loss[-window:]) / window) if loss else None
