"""The run directory, kept in step with training: manifest, calibration, metrics, token records and cost."""

import json
import logging
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trustmopd.files import write_json, write_text
from trustmopd.runs import RunDirectory, step_of, whole_checkpoints
from trustmopd.runs.checkpoints import all_checkpoints
from trustmopd.runs.layout import SET_ASIDE
from trustmopd.training.cost import record_training_cost
from trustmopd.training.manifest import run_manifest

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer

logger = logging.getLogger(__name__)


class RunFiles(TrainerCallback):
    """Calibrates where that is still to be done, then writes. What a killed run wrote after its last checkpoint is
    cut back on resume: those steps are made, and written, again."""

    def __init__(self, trainer: "TrustMOPDTrainer"):
        self.trainer = trainer
        self.metrics = RunDirectory(trainer.run_dir).metrics

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.ensure_calibration()
        state.compute_steps(args, state.max_steps)  # a resumed state has the old intervals of logging and saving
        if not state.is_world_process_zero:
            return
        set_aside(Path(args.output_dir), self.trainer.run_id, state.global_step)
        save_beside(self.trainer.run_dir, self.trainer)
        lines = self.metrics.read_text().splitlines() if self.metrics.is_file() else []
        kept = [line for line in lines if _step_of(line) <= state.global_step]
        write_text(self.metrics, "".join(f"{line}\n" for line in kept))
        for step, file in RunDirectory(self.trainer.run_dir).recorded().items():
            if step > state.global_step:
                file.unlink()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and logs:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            record_training_cost(self.trainer)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            record_training_cost(self.trainer)


def set_aside(output_dir: Path, run_id: str, step: int) -> None:
    """Move what another run, or a later step of this one, left under a checkpoint's name: it would be taken for the
    newest checkpoint of this run. Nothing is deleted."""
    mine = {path for path in whole_checkpoints(output_dir, run_id) if step_of(path) <= step}
    for path in (path for path in all_checkpoints(output_dir) if path not in mine):
        home = output_dir / SET_ASIDE
        number = next(n for n in count(1) if not (home / f"{path.name}.{n}").exists())
        home.mkdir(exist_ok=True)
        path.rename(home / f"{path.name}.{number}")
        logger.warning("%s is not of this run: it was moved to %s.", path, home / f"{path.name}.{number}")


def save_beside(folder: Path, trainer: "TrustMOPDTrainer") -> None:
    """Make a run directory or a checkpoint complete in itself; the manifest comes last and marks a checkpoint whole."""
    if trainer.calibration is not None:
        trainer.calibration.save(RunDirectory(folder).calibration)
    write_json(RunDirectory(folder).manifest, run_manifest(trainer))


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return float("inf")  # the last line of a killed run may be half a line
