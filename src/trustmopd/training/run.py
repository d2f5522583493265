"""A run as a whole: calibrated before it begins, whole at every checkpoint, resumed as what it was."""

import logging
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, TrainOutput
from trl import DistillationTrainer

from trustmopd.files import write_text
from trustmopd.method import Calibration
from trustmopd.runs import RunDirectory, resumable_checkpoint, whole_checkpoints
from trustmopd.runs.checkpoints import read_manifest
from trustmopd.training.calibrating import check_habits, measure_calibration
from trustmopd.training.card import model_card
from trustmopd.training.clock import PhaseClock
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.cost import record_calibration_cost
from trustmopd.training.manifest import dependencies, run_manifest
from trustmopd.training.metrics import StepTotals
from trustmopd.training.resuming import (
    apply_changes,
    changes,
    check_checkpoint,
    check_same_ingredients,
    check_same_settings,
    fresh_groups,
    tell,
)
from trustmopd.training.run_files import save_beside

logger = logging.getLogger(__name__)


class CalibratedRun(DistillationTrainer):
    """The life of a `TrustMOPDTrainer`, which supplies the pool, the objective and these attributes."""

    args: TrustMOPDConfig
    calibration: Calibration | None
    clock: PhaseClock
    run_dir: Path
    run_id: str
    resumed: list[dict[str, Any]]
    totals: StepTotals

    def calibrate(self) -> Calibration | None:
        """Measure mu on rollouts of the initial student (Algorithm 1), keep it for training and save it in the run
        directory. Random state and model are left as they were. None where the rule uses no calibrated scores."""
        if not self.args.calibrates:
            return None
        if self.state.global_step > 0:
            raise RuntimeError(
                f"calibrate() was called after {self.state.global_step} training steps, but mu is a property of the "
                "initial student. Call it before train(); a resumed run uses the calibration it began with."
            )
        began = time.perf_counter()
        measured = measure_calibration(self)
        check_habits(measured, self.args.min_relative_mu)
        self.calibration = measured
        if self.accelerator.is_main_process:
            self.calibration.save(RunDirectory(self.run_dir).calibration)
            record_calibration_cost(self, time.perf_counter() - began)
        return self.calibration

    def ensure_calibration(self) -> None:
        """Use what `calibrate` left in the run directory if it fits, measure otherwise."""
        if not self.args.calibrates or self.calibration is not None:
            return
        saved, found = RunDirectory(self.run_dir).calibration, None
        if self.accelerator.is_main_process and saved.is_file():
            try:
                found = self._loaded(saved)
            except ValueError as error:
                logger.warning("%s is not used, and will be replaced: %s", saved, error)
        # The first process decides: others may not see its disk, and would wait in calibration for ever.
        (self.calibration,) = broadcast_object_list([found])
        if self.calibration is None:
            self.calibrate()

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint:
            checkpoint = resumable_checkpoint(resume_from_checkpoint, self.args.output_dir, self.run_dir)
            check_checkpoint(checkpoint)
            check_same_settings(checkpoint, self.args.to_dict())
            check_same_ingredients(checkpoint, run_manifest(self))
            stored = read_manifest(checkpoint)
            self.run_id = stored["run"]
            if self.args.calibrates:
                self.calibration = self._loaded(RunDirectory(checkpoint).calibration)
            resume_from_checkpoint = str(checkpoint)
            try:
                state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
            except ValueError as error:
                raise ValueError(
                    f"{checkpoint / TRAINER_STATE_NAME} was cut short ({error}). Resume from another."
                ) from error
            changed = changes(checkpoint, self.args.to_dict())
            self.resumed = [*stored.get("resumed", []), {"step": state.global_step, "changed": changed}]
            if state.global_step >= self.args.max_steps > 0:  # transformers would train one step too many
                logger.info("%s has all of its %d steps: nothing left to train.", checkpoint, self.args.max_steps)
                self._load_from_checkpoint(resume_from_checkpoint)
                self.state = state
                return TrainOutput(state.global_step, float("nan"), {})
            tell(changed, state.global_step)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        fresh = fresh_groups(self.optimizer)
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and (changed := self.resumed[-1]["changed"]):
            apply_changes(changed, fresh, self.optimizer, self.lr_scheduler)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.ensure_calibration()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.clock.take()  # the next step's seconds are its own

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """TRL's, with the metrics of allocation beside the loss: `eval_weight/<teacher>`, …"""
        output = super().evaluation_loop(*args, **kwargs)
        for metric, value in self.totals.reduce(self.accelerator).items():
            self._metrics["eval"][metric].append(value)
        return output

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        if self.is_world_process_zero():
            card = model_card(self, model_name, dataset_name, [tags] if isinstance(tags, str) else tags or [])
            write_text(Path(self.args.output_dir) / "README.md", card)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """A tied output layer is saved once, under its other name: it is not missing."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        missing = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(
            SimpleNamespace(missing_keys=missing, unexpected_keys=load_result.unexpected_keys)
        )

    def _loaded(self, path: Path) -> Calibration:
        calibration = Calibration.load(path)
        calibration.check(dependencies(self))
        check_habits(calibration, self.args.min_relative_mu)
        return calibration

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Whole once its manifest is there: an old one of the same name loses its manifest first, and older checkpoints
        are deleted only after the new one is whole."""
        run_dir = Path(self._get_output_dir(trial=trial))
        checkpoint = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.accelerator.is_main_process:
            RunDirectory(checkpoint).manifest.unlink(missing_ok=True)
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()  # every process has written its random state
        if self.accelerator.is_main_process:
            save_beside(checkpoint, self)
            mine = whole_checkpoints(run_dir, self.run_id)
            for old in mine[: -limit if limit else 0]:
                if str(old) != self.state.best_model_checkpoint:
                    shutil.rmtree(old)
