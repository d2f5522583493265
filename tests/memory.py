"""Peak memory of what torch allocates on the CPU, exact and without the noise of a process's resident memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile


@dataclass
class Peak:
    bytes: int = 0


@contextmanager
def peak_allocation() -> Iterator[Peak]:
    """The most that was held at once of what was allocated inside."""
    peak = Peak()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        yield peak
    held = 0
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak.bytes = max(peak.bytes, held)
