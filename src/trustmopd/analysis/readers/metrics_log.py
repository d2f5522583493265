"""metrics.jsonl as analysis reads it: every line that is whole, and what is said of the others."""

import json
import math
from pathlib import Path


def read_metrics(path: Path) -> tuple[list[dict[str, float]], list[tuple[str, str]]]:
    """The numbers of each line: steps, evaluations, and the summary of a run that reached its end. Then what is missing
    or damaged, and what follows from it. The last line of a killed run may be half a line."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return [], [("There is no metrics.jsonl.", "Training writes it step by step.")]
    except OSError as error:
        return [], [(f"{path} cannot be read ({error.strerror}).", "It is left out.")]
    found, bad = [], []
    for number, line in enumerate(lines, start=1):
        try:
            logged = json.loads(line)
        except ValueError:  # not JSON, or not UTF-8
            logged = None
        numbers = {name: v for name, v in logged.items() if type(v) in (int, float)} if type(logged) is dict else {}
        if math.isfinite(numbers.get("step", math.nan)) and ("loss" in numbers or "loss" not in logged):
            found.append(numbers)
        elif type(logged) is not dict or "loss" in logged:
            bad.append(str(number))
    if not bad:
        return found, []
    if len(bad) == 1:
        return found, [(f"Line {bad[0]} of metrics.jsonl is not whole.", "It is left out.")]
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    return found, [(f"Lines {', '.join(bad[:5])}{more} of metrics.jsonl are not whole.", "They are left out.")]
