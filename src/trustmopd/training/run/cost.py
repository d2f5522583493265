"""What a run cost: models scored per step, device time, peak memory and, separately, the calibration."""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trustmopd.runs import RunDirectory
from trustmopd.runs.cost import add_cost, device_time, read_cost
from trustmopd.training.run.identity import RunIdentity


@dataclass(frozen=True)
class Bill:
    """The cost file of one run, which has this many `processes`, and policies `elsewhere` with devices of their own:
    they hold these all the time, so their time counts in full."""

    run: RunDirectory
    identity: RunIdentity
    processes: int
    elsewhere: Mapping[str, float]

    @property
    def devices(self) -> float:
        return self.processes + sum(self.elsewhere.values())

    def calibrated(self, seconds: float) -> None:
        """Add the cost of calibration. A diagnosis may calibrate a run that is already trained; its cost is kept."""
        shared = {} if read_cost(self.run).get("training") else self._shared()
        add_cost(self.run, **shared, calibration=device_time(seconds, self.devices))

    def trained(self, unlogged: Mapping[str, float], *, calibrated_elsewhere: bool) -> None:
        """Add the cost of training, from the metrics. A resumed run continues these, so interruptions add nothing and
        repeated steps count once. `unlogged` has the means of the steps since the last line, the number of steps made
        and the peak of memory so far. Saving checkpoints is not counted."""
        seconds, done, peak_gib = 0.0, 0, unlogged["peak_gib"]
        lines = self.run.metrics.read_text().splitlines()
        for logged in (*map(json.loads, lines), unlogged):
            phases = [value for name, value in logged.items() if name.startswith("seconds/")]
            if phases:  # means over the steps since the line before
                seconds += sum(phases) * (logged["step"] - done)
                peak_gib, done = max(peak_gib, logged["memory/peak_gib"]), logged["step"]
        training = {"steps": done, **device_time(seconds, self.devices), "peak_memory_gib": peak_gib}
        calibration = None if calibrated_elsewhere else read_cost(self.run).get("calibration")
        add_cost(self.run, **self._shared(), training=training, calibration=calibration)

    def _shared(self) -> dict[str, Any]:
        gpus = self.identity.machine["hardware"]["gpus"]
        teachers, references = self.identity.asked.values(), self.identity.references
        return {
            "device": gpus[0] if gpus else f"CPU, {platform.machine()}",
            "devices": self.devices,
            "elsewhere": dict(self.elsewhere),
            "scored": {
                "teachers": len(teachers),
                "reference": len(references),
                "parameters": sum(each.parameters or 0 for each in (*teachers, *references)),
            },
        }
