"""The run directory, kept in step with training: manifest, calibration, metrics, token records and cost."""

import json
import logging
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from trustmopd.files import write_json, write_text
from trustmopd.training.cost import record_training_cost
from trustmopd.training.manifest import CALIBRATION, MANIFEST, checkpoints_of, run_manifest, step_of

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer

logger = logging.getLogger(__name__)


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
        state.compute_steps(args, state.max_steps)  # a resumed state has the old intervals of logging and saving
        if not state.is_world_process_zero:
            return
        set_aside(Path(args.output_dir), self.trainer.run_id, state.global_step)
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


def set_aside(output_dir: Path, run_id: str, step: int) -> None:
    """Move what another run, or a later step of this one, left under a checkpoint's name: it would be taken for the
    newest checkpoint of this run. Nothing is deleted."""
    mine = {path for path in checkpoints_of(run_id, output_dir) if step_of(path) <= step}
    for path in sorted({*output_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*")} - mine):
        home = output_dir / "set-aside"
        number = next(n for n in count(1) if not (home / f"{path.name}.{n}").exists())
        home.mkdir(exist_ok=True)
        path.rename(home / f"{path.name}.{number}")
        logger.warning("%s is not of this run: it was moved to %s.", path, home / f"{path.name}.{number}")


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
