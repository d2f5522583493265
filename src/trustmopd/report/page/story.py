"""The report's first sentences: did it work, and what the scored prompts can and cannot show."""

from collections.abc import Iterator

from trustmopd.recipe.rules import TRUST
from trustmopd.report.readers.run import GAIN
from trustmopd.report.statistics.comparison import UNIFORM, Comparison, Setting
from trustmopd.util.messages import first_few
from trustmopd.util.stats import Spread, spread


def story(comparison: Comparison) -> list[str]:
    """Unfinished runs come first: a reader must know of them before the numbers."""
    stopped = [f"{run.path} at {run.stopped}" for run in comparison.runs if run.stopped]
    sentences = [f"Not finished: {first_few(stopped)}."] if stopped else []
    for setting in comparison.settings:
        where = f"{comparison.label(setting)}: " if len(comparison.settings) > 1 else ""
        sentences.append(where + _headline(setting, comparison))
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


def _headline(setting: Setting, comparison: Comparison) -> str:
    """Of trust if it was scored, otherwise of the best method: the recovery, or the score if there is none."""
    shares = recovered(setting, comparison)
    scores = {method: spread(seeds.values()) for method in setting.methods if (seeds := setting.overall(method))}
    known, column = (shares, "recovery") if shares else (scores, "overall")
    if not known:
        return "There are no scores yet, so whether it worked is not known."
    method = TRUST if TRUST in known else max(known, key=lambda name: known[name].mean)
    asked = setting.certainty(method).prompts
    prompts = f"{asked:,} prompts" if asked else "the number of prompts is not recorded"
    number = _number(setting, method, column, known[method], prompts)
    gap = " of the gap between where it started and its teachers, each asked in its own domain"
    text = f"With {method} the student " + (f"recovered {number}{gap}" if shares else f"scores {number}")
    if method == TRUST and UNIFORM in known:
        text += f"; with uniform weights {_number(setting, UNIFORM, column, known[UNIFORM])}"
    doubts = [*_doubts(setting, method, column if shares else GAIN)]
    if not shares:
        doubts.append(
            "Its share of the gap to its teachers is not known: that takes scores of the initial student, and of a "
            "teacher for every domain that scores higher."
        )
    return " ".join([f"{text}.", *doubts])


def _number(setting: Setting, method: str, column: str, value: Spread, *notes: str) -> str:
    digits = 0 if column == "recovery" else 1
    sure = [f"± {value.sd:.{digits}%} over {value.n} seeds"] if value.n > 1 else []
    if interval := setting.certainty(method).intervals.get(column):
        sure.append(f"95% interval {interval[0]:.{digits}%} to {interval[1]:.{digits}%}")
    certainty = "; ".join([*sure, *notes])
    return f"{value.mean:.{digits}%}" + (f" ({certainty})" if certainty else "")


def _doubts(setting: Setting, method: str, column: str) -> Iterator[str]:
    """Conclusions that a reader might draw from the numbers, though the scored prompts do not support them."""
    if nothing_shown(setting, method, column):
        what, why = "that it gained anything", "the interval includes 0"
        if setting.certainty(method).intervals[column] is None:
            what, why = "how large this share is", "in some resamples of them there is no gap to recover"
        yield f"These prompts are too few to show {what}: {why}."
    if method == TRUST and overlap(setting, TRUST, UNIFORM):
        yield "They do not show that trust and uniform weights differ: the two intervals overlap."
