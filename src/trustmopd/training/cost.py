"""What a run cost: scored models a step, device time, peak memory, and the one-off calibration apart."""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trustmopd.files import read_json, write_json
from trustmopd.runs import RunDirectory
from trustmopd.training.identity import RunIdentity


@dataclass(frozen=True)
class Bill:
    """The cost file of one run, which has `devices` processes."""

    run: RunDirectory
    identity: RunIdentity
    devices: int

    def calibrated(self, seconds: float) -> None:
        """Beside what the run's training cost, where a trained run is calibrated for a diagnosis."""
        known = self._known()
        trained = known if known.get("training") else {}
        write_json(self.run.cost, {**self._shared(), **trained, "calibration": self._device_time(seconds)})

    def trained(self, unlogged: Mapping[str, float], *, calibrated_elsewhere: bool) -> None:
        """From the metrics, which a resumed run continues: interruptions add nothing, and steps made twice count once.
        `unlogged` are the means of the steps since the last line, the number of steps made, and the peak of memory so
        far (a line has the mean of its steps' peaks). Saving checkpoints is not counted."""
        seconds, done, peak_gib = 0.0, 0, unlogged["peak_gib"]
        lines = self.run.metrics.read_text().splitlines()
        for logged in (*map(json.loads, lines), unlogged):
            phases = [value for name, value in logged.items() if name.startswith("seconds/")]
            if phases:  # means over the steps since the line before
                seconds += sum(phases) * (logged["step"] - done)
                peak_gib, done = max(peak_gib, logged["memory/peak_gib"]), logged["step"]
        training = {"steps": done, **self._device_time(seconds), "peak_memory_gib": peak_gib}
        earlier = self._earlier() | ({"calibration": None} if calibrated_elsewhere else {})
        write_json(self.run.cost, {**self._shared(), "training": training, **earlier})

    def _shared(self) -> dict[str, Any]:
        gpus = self.identity.machine["hardware"]["gpus"]
        return {
            "device": gpus[0] if gpus else f"CPU, {platform.machine()}",
            "devices": self.devices,
            "scored": {"teachers": len(self.identity.asked), "reference": len(self.identity.references)},
        }

    def _device_time(self, seconds: float) -> dict[str, float]:
        return {"seconds": seconds, "device_hours": seconds * self.devices / 3600}

    def _earlier(self) -> dict[str, Any]:
        """What calibrating in this folder cost, in this run or before it, and what `trustmopd evaluate` added."""
        known = self._known()
        evaluation = {"evaluation": known["evaluation"]} if known.get("evaluation") else {}
        return {"calibration": known.get("calibration"), **evaluation}

    def _known(self) -> dict[str, Any]:
        path = self.run.cost
        return read_json(path, what="cost", remedy="Delete it.") if path.is_file() else {}
