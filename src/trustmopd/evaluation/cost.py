"""What evaluating a run's student cost, beside what training it cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from trustmopd.files import read_json, write_json
from trustmopd.runs import RunDirectory


@contextmanager
def counted(run: Path, devices: int) -> Iterator[None]:
    """Adds the time of the block, interrupted or not, to what earlier evaluations of this run took."""
    path, began = RunDirectory(run).cost, monotonic()
    known = read_json(path, what="cost", remedy="Delete it.") if path.is_file() else {}
    try:
        yield
    finally:
        before = known.get("evaluation") or {"seconds": 0.0, "device_hours": 0.0}
        seconds = monotonic() - began
        spent = {
            "seconds": before["seconds"] + seconds,
            "device_hours": before["device_hours"] + seconds * devices / 3600,
        }
        write_json(path, {**known, "evaluation": spent})
