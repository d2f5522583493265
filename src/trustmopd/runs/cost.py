"""What calibrating, training and evaluating a run cost. Each stage adds its own part."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from trustmopd.runs.layout import RunDirectory
from trustmopd.runs.schemas import read_file, write_file

logger = logging.getLogger(__name__)


def read_cost(run: RunDirectory) -> dict[str, Any]:
    """What is known so far; nothing if no stage has written. A broken file is renamed, so that it stops no run."""
    if not run.cost.exists():
        return {}
    aside = run.cost.with_name(f"{run.cost.name}.broken")
    try:
        return read_file(run.cost, what="cost", remedy=f"It is renamed to {aside.name}, and a new one is written.")
    except (ValueError, OSError) as error:
        logger.warning("%s", error)
        run.cost.rename(aside)
        return {}


def add_cost(run: RunDirectory, **parts: Any) -> None:
    write_file(run.cost, {**read_cost(run), **parts})


def device_time(seconds: float, devices: float) -> dict[str, float]:
    return {"seconds": seconds, "device_hours": seconds * devices / 3600}


@contextmanager
def counted_evaluation(run: RunDirectory, devices: int) -> Iterator[None]:
    """Adds the time of the block, interrupted or not, to what earlier evaluations of this run took."""
    before, began = read_cost(run).get("evaluation") or device_time(0.0, devices), monotonic()
    try:
        yield
    finally:
        spent = device_time(monotonic() - began, devices)
        add_cost(run, evaluation={part: before[part] + spent[part] for part in spent})
