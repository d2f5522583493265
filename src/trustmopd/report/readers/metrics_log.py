"""The metrics of a run, line by line: every readable line, and a note on the others."""

import json
import math
from pathlib import Path
from typing import Any

from trustmopd.report.readers.missing import Missing
from trustmopd.util.messages import first_few


def read_metrics(path: Path) -> tuple[list[dict[str, float]], list[Missing]]:
    """The numbers of each line: steps, evaluations, and the summary of a run that reached its end. The last line of a
    killed run may be incomplete."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return [], [Missing(f"There is no {path.name}.", "Training writes it step by step.")]
    except OSError as error:
        return [], [Missing(f"{path} cannot be read ({error.strerror}).")]
    found, bad = [], []
    for number, line in enumerate(lines, start=1):
        logged = _logged(line)
        numbers = {name: value for name, value in (logged or {}).items() if type(value) in (int, float)}
        whole = math.isfinite(numbers.get("step", math.nan)) and ("loss" in numbers) == ("loss" in (logged or {}))
        if whole:
            found.append(numbers)
        elif logged is None or "loss" in logged:
            bad.append(str(number))
    said = f"{'Lines' if len(bad) > 1 else 'Line'} {first_few(bad)} of {path.name} cannot be read."
    return found, [Missing(said, "They are left out." if len(bad) > 1 else "It is left out.")] if bad else []


def _logged(line: bytes) -> dict[str, Any] | None:
    try:
        logged = json.loads(line)
    except ValueError:  # not JSON, or not UTF-8
        return None
    return logged if isinstance(logged, dict) else None
