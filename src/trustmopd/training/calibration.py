"""The artifact of a calibration: mu by teacher, what it depends on, how it was made; saved, loaded, and compared."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trustmopd.policies.pool import UNKNOWN
from trustmopd.runs.schemas import CalibrationFile, read_file, write_file

_REMEDY = "Delete the file and calibrate again (`trustmopd calibrate RECIPE`, or `trainer.calibrate()`)."


@dataclass(frozen=True)
class Calibration:
    """mu by teacher, what it depends on, and how it was made. Frozen: it is measured once and never updated."""

    mu: dict[str, float]
    depends_on: dict[str, Any]
    spread: dict[str, float]
    tokens: int
    batches: int
    global_batch_size: int
    engine: str = "transformers"  # what sampled the rollouts; recorded, but not compared

    def __post_init__(self) -> None:
        for teacher, mu in self.mu.items():
            if mu == 0:
                raise ValueError(
                    f"teacher '{teacher}' has mu = 0: it equals the reference on all {self.tokens} calibration tokens, "
                    "so it cannot be calibrated. Check its checkpoint path, or drop it from the pool."
                )
            if not 0 < mu < float("inf"):
                raise ValueError(
                    f"teacher '{teacher}' has mu = {mu}, which is not a positive number, so its scores cannot be "
                    f"calibrated. {_REMEDY}"
                )

    def mu_of(self, teachers: Sequence[str]) -> Tensor:
        return torch.tensor([self.mu[teacher] for teacher in teachers], dtype=torch.float32)

    def error(self, teacher: str) -> float:
        """The relative standard error of its mu, if tokens were independent."""
        return self.spread[teacher] / self.mu[teacher] / self.tokens**0.5

    def check(self, depends_on: Mapping[str, Any]) -> None:
        """Refuse a run that this calibration was not made for, naming the first field that differs. Weights of a run
        that has not loaded them may be any."""
        made_for, run = _flat(self.depends_on), _flat(depends_on)
        for field in {**run, **made_for}:
            if run.get(field) not in (made_for.get(field), UNKNOWN):
                raise ValueError(
                    f"the calibration was made with {field} = {made_for.get(field)!r}, this run has "
                    f"{run.get(field)!r}: its mu does not describe these scores. Calibrate again for this run (leave "
                    f"calibration_path unset; in a recipe, calibration), or restore {field}."
                )

    def save(self, path: str | Path) -> Path:
        return write_file(Path(path), asdict(self), CalibrationFile)

    @classmethod
    def load(cls, path: str | Path, *, remedy: str = _REMEDY) -> "Calibration":
        if not Path(path).exists():
            raise FileNotFoundError(
                f"calibration {path} does not exist. Check calibration_path, or leave it unset to calibrate again."
            )
        payload = read_file(Path(path), what="calibration", remedy=remedy, schema=CalibrationFile)
        return cls(**{name: payload[name] for name in CalibrationFile.model_fields if name in payload})


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'teachers': {'math': 'ab12'}} → {'teachers.math': 'ab12'}"""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return flat
