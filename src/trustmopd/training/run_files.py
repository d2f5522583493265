"""The run directory, kept in step with training: manifest, calibration, metrics, token records and cost."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trustmopd.files import write_json, write_text
from trustmopd.training.cost import record_training_cost
from trustmopd.training.manifest import CALIBRATION, MANIFEST, run_manifest

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer


class RunFiles(TrainerCallback):
    """Calibrates where that is still to be done, then writes. What a killed run wrote after its last checkpoint is
    cut back on resume: those steps are made, and written, again."""

    def __init__(self, trainer: "TrustMOPDTrainer"):
        self.trainer = trainer
        self.metrics = trainer.run_dir / "metrics.jsonl"

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.ensure_calibration()
        if not state.is_world_process_zero:
            return
        save_beside(self.trainer.run_dir, self.trainer)
        lines = self.metrics.read_text().splitlines() if self.metrics.is_file() else []
        kept = [line for line in lines if _step_of(line) <= state.global_step]
        write_text(self.metrics, "".join(f"{line}\n" for line in kept))
        for file in (self.trainer.run_dir / "allocation").glob("step-*.parquet"):
            if int(file.stem.split("-")[1]) > state.global_step:
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


def save_beside(folder: Path, trainer: "TrustMOPDTrainer") -> None:
    """Make a run directory or a checkpoint complete in itself; the manifest comes last and marks a checkpoint whole."""
    if trainer.calibration is not None:
        trainer.calibration.save(folder / CALIBRATION)
    write_json(folder / MANIFEST, run_manifest(trainer))


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return float("inf")  # the last line of a killed run may be half a line
