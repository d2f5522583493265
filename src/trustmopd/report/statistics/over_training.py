"""A run over its steps, from its logged metrics: series to draw, and the drift of scores from their calibration."""

import math
from collections.abc import Mapping, Sequence

from trustmopd.util.messages import first_few

#: A teacher's mean calibrated score is 1 on the calibration rollouts. Outside this band mu no longer describes it: with
#: gamma = 7, a factor of 1.5 against the other teachers multiplies its share of the weight by 17.
BAND = (1 / 1.5, 1.5)
#: Scores are averaged over this many logged steps before they are compared with the band: single batches are noisy.
WINDOW = 10
#: Warn of more responses that are cut short than this, and of less of the student's probability in its candidates.
CLIPPED, MASS = 0.1, 0.95
_LIMITED = ("clipped", "student_mass")
SERIES = {
    "loss": "loss",
    "length": "completions/mean_length",
    "clipped": "completions/clipped_ratio",
    "max_weight": "agreement/max_weight",
    "effective_teachers": "agreement/effective_teachers",
    "student_mass": "candidates/student_mass",
    "degenerate_tokens": "candidates/degenerate_tokens",
}


def series(steps: Sequence[Mapping[str, float]], teachers: Sequence[str]) -> dict[str, list[float]]:
    """Metric → its value at each logged step. `step` and `seconds` are always there, other metrics only if every line
    has them."""
    if not steps:
        return {}
    wanted = SERIES | {f"{kind}_{t}": f"{kind}/{t}" for kind in ("weight", "score") for t in teachers}
    found = {name: [line[key] for line in steps] for name, key in wanted.items() if all(key in line for line in steps)}
    phases = [sum(value for key, value in line.items() if key.startswith("seconds/")) for line in steps]
    return {"step": [line["step"] for line in steps], **found, "seconds": phases}


def drift(steps: Sequence[Mapping[str, float]], teachers: Sequence[str]) -> dict[str, float]:
    """A teacher's mean calibrated score over `WINDOW` steps where it is farthest from 1. For teachers with logged
    scores, which are calibrated means over all tokens of a step."""
    found = {}
    for teacher in teachers:
        scores = [s for line in steps if math.isfinite(s := line.get(f"score/{teacher}", math.nan))]
        if not scores:
            continue
        size = min(WINDOW, len(scores))
        means = [sum(scores[end - size : end]) / size for end in range(size, len(scores) + 1)]
        found[teacher] = max(means, key=lambda mean: max(mean, 1 / mean) if mean > 0 else float("inf"))
    return found


def not_numbers(steps: Sequence[Mapping[str, float]], teachers: Sequence[str]) -> list[str]:
    """Steps at which the loss or a teacher's score was logged and is NaN or infinite."""
    said = []
    for what, key in {"loss": "loss", **{f"score of '{teacher}'": f"score/{teacher}" for teacher in teachers}}.items():
        bad = [f"{line['step']:g}" for line in steps if key in line and not math.isfinite(line[key])]
        if bad:
            which = f"{'steps' if len(bad) > 1 else 'step'} {first_few(bad)}"
            said.append(
                f"The {what} of {which} is not a number, and is left out of means and figures. A student that "
                "was trained on it is of no use: train again with a lower learning rate."
            )
    return said


def limit_warnings(found: Mapping[str, Sequence[float]]) -> list[str]:
    """Of the series of a run: where a limit of its settings was in the way."""
    clipped, mass = ([value for value in found.get(name, ()) if math.isfinite(value)] for name in _LIMITED)
    said = []
    if clipped and (share := sum(clipped) / len(clipped)) > CLIPPED:
        said.append(
            f"{share:.0%} of responses hit max_completion_length: raise it, or the end of answers is not taught."
        )
    if mass and (share := sum(mass) / len(mass)) < MASS:
        said.append(f"The candidates hold {share:.1%} of the student's probability: raise num_candidates.")
    return said


def drift_warnings(drifts: Mapping[str, float]) -> list[str]:
    return [
        f"Teacher '{teacher}': its mean calibrated score reached {farthest:.2f}, outside {BAND[0]:.2f} to "
        f"{BAND[1]:.2f} (means over {WINDOW} steps; 1 is its calibration). mu no longer describes this teacher, so "
        "its weights are unreliable. Look at its weight over training, or calibrate on the trained student to see what "
        "changed."
        for teacher, farthest in drifts.items()
        if not BAND[0] <= farthest <= BAND[1]
    ]
