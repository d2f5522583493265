"""A run over its steps, from its logged metrics: series to draw, and values that are no numbers."""

import math
from collections.abc import Mapping, Sequence

from trustmopd.runs.columns import GROUPS
from trustmopd.util.messages import first_few

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
    grouped = sorted({key for line in steps for key in line if key.partition("/")[0] in GROUPS})
    found |= {key: [line.get(key, math.nan) for line in steps] for key in grouped}
    phases = [sum(value for key, value in line.items() if key.startswith("seconds/")) for line in steps]
    return {"step": [line["step"] for line in steps], **found, "seconds": phases}


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
