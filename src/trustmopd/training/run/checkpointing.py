"""What transformers calls to save a student, to load it and to resume its run.

When a checkpoint is whole is decided in `run_files.py`, what a resumed run may change in `resuming.py`.
"""

import logging
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import Trainer
from transformers.trainer_utils import TrainOutput

from trustmopd.runs import RunDirectory
from trustmopd.training.parallelism import saving_whole_weights
from trustmopd.training.run.resuming import apply_changes, fresh_groups
from trustmopd.util.messages import Preempted

logger = logging.getLogger(__name__)


class CheckpointingTrainer(Trainer):
    """A base of `TrustMOPDTrainer`, which has its `files`, `calibrator`, `step_log`, `guarding`, `preemption` and
    `grading`."""

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        with self.files.alone(self.accelerator), self.preemption.heeded(), closing(self.grading):
            try:
                trained = self._train(resume_from_checkpoint, *args, **kwargs)
                self.preemption.check()  # asked in the last step: other seeds may follow
                self.guarding.check()
                return trained
            except Preempted:
                self._save_last_step()
                raise

    def _train(self, resume_from_checkpoint: str | bool | None, *args: Any, **kwargs: Any) -> Any:
        if not resume_from_checkpoint:
            return super().train(None, *args, **kwargs)
        resume = self.files.resume_from(resume_from_checkpoint)
        self.step_log.gap.resume(resume.state.log_history)
        self.guarding.resume(resume.state.log_history)
        self.calibrator.resume(RunDirectory(resume.checkpoint).calibration)
        if self.context.emphasis is not None:
            self.context.emphasis.resume(resume.state.stateful_callbacks)
        step, last = resume.state.global_step, self.args.max_steps
        if step >= last > 0:  # transformers would train one step too many
            logger.warning("nothing is left to train: %s has %d of %d steps.", resume.checkpoint, step, last)
            self.load_student(resume.checkpoint)
            self.state = resume.state
            return TrainOutput(step, float("nan"), {})
        return super().train(str(resume.checkpoint), *args, **kwargs)

    def _save_last_step(self) -> None:
        if self.state.global_step > self.files.saved and self.args.save_strategy != "no":
            self.preemption.restore_random_state()
            self._save_checkpoint(self.model, trial=None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
            self.accelerator.wait_for_everyone()  # a launcher ends all processes once one has left

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> tuple:
        """When the student is where it will be trained, and before anything is written, mu is measured."""
        prepared = super()._prepare_for_training(*args, **kwargs)
        self.ensure_calibration()
        return prepared

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.ensure_calibration()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.step_log.forget_time()

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
            tags = [tags] if isinstance(tags, str) else tags or []
            self.files.write_card(model_name, dataset_name, [*tags, *self._tag_names])

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
