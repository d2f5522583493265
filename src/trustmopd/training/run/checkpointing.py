"""TRL's trainer with checkpoints that are whole, that a run resumes from, and that have a model card beside them.

Here is what transformers and TRL call to save and load a student. When a checkpoint is whole is decided in
`run_files.py`, what a resumed run may change in `resuming.py`.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from trl import DistillationTrainer

from trustmopd.runs.card_results import MODEL_CARD, results
from trustmopd.runs.layout import CHECKPOINTS
from trustmopd.training.calibrate import Calibrator
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.parallelism import saving_whole_weights
from trustmopd.training.run.identity import RunIdentity
from trustmopd.training.run.model_card import CITATION, model_card
from trustmopd.training.run.resuming import apply_changes, fresh_groups
from trustmopd.training.run.run_files import RunFiles
from trustmopd.util.files import write_text


class CheckpointingTrainer(DistillationTrainer):
    """The base of `TrustMOPDTrainer`, which sets these fields."""

    args: TrustMOPDConfig
    identity: RunIdentity
    files: RunFiles
    calibrator: Calibrator

    _tag_names: ClassVar[list[str]] = ["trl", "distillation", "trustmopd"]
    _paper: ClassVar[dict[str, str]] = {
        "title": "Distill What You Trust: Reliability-Aware Multi-Teacher On-Policy Distillation",
        "citation": CITATION,
    }

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with saving_whole_weights(self.accelerator):
            super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with self.files.whole_checkpoint(Path(self._get_output_dir(trial=trial)), self.accelerator):
            super()._save_checkpoint(model, trial)

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        if self.is_world_process_zero():
            run, calibration = self.files.run, self.calibrator.calibration
            card = model_card(
                self.identity,
                self.args,
                calibration.mu if calibration else {},
                planned_steps=self.state.max_steps,
                name=run.path.name if model_name == CHECKPOINTS else model_name,  # of a recipe's run
                dataset=dataset_name,
                tags=[*([tags] if isinstance(tags, str) else tags or []), *self._tag_names],
                paper=self._paper,
                results=results(run),
            )
            write_text(Path(self.args.output_dir) / MODEL_CARD, card)

    def load_student(self, checkpoint: Path) -> None:
        """Load the student's weights from a checkpoint. The frozen policies do not change."""
        self._load_from_checkpoint(str(checkpoint))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """A tied output layer is saved once, under its other name: do not report it as missing."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        missing = [key for key in load_result.missing_keys if key not in tied]
        found = SimpleNamespace(missing_keys=missing, unexpected_keys=load_result.unexpected_keys)
        super()._issue_warnings_after_load(found)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        fresh = fresh_groups(self.optimizer)
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.files.resume is not None and self.files.resume.changed:
            apply_changes(self.files.resume.changed, fresh, self.optimizer, self.lr_scheduler)
