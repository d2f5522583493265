"""Write the run directory during training: manifest, calibration, metrics, token records and cost."""

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator
from safetensors import SafetensorError
from transformers import TrainerCallback, TrainerState

from trustmopd.runs import RunDirectory, step_of, whole_checkpoints
from trustmopd.runs.card_results import MODEL_CARD, refresh_card, results
from trustmopd.runs.checkpoints import all_checkpoints
from trustmopd.runs.layout import CHECKPOINT, CHECKPOINTS, SET_ASIDE
from trustmopd.runs.schemas import write_file
from trustmopd.training.config import TrustMOPDConfig
from trustmopd.training.run.across_ranks import all_succeed, first_decides
from trustmopd.training.run.cost import Bill
from trustmopd.training.run.identity import run_manifest
from trustmopd.training.run.model_card import model_card
from trustmopd.training.run.resuming import Resume
from trustmopd.training.run.which_checkpoint import newest_resumable
from trustmopd.util.files import locked, write_text
from trustmopd.util.messages import Interrupted, first_line

if TYPE_CHECKING:
    from trustmopd.training.trainer import TrustMOPDTrainer

logger = logging.getLogger(__name__)

_NOT_SHARED = (
    "Other processes can read it. If the nodes have no shared disk, copy the checkpoint to the same path on each node."
)


class RunFiles(TrainerCallback):
    """Writes the run directory during training. On resume, what a killed run wrote after its last checkpoint is
    removed, because those steps are repeated."""

    def __init__(self, args: TrustMOPDConfig, trainer: "TrustMOPDTrainer", run_id: str):
        self.run = RunDirectory(Path(args.run_dir or str(args.output_dir)))
        self.identity = trainer.identity
        elsewhere = trainer.pool.elsewhere.devices if trainer.pool.elsewhere else {}
        self.bill = Bill(self.run, self.identity, trainer.accelerator.num_processes, elsewhere)
        self.args = args
        self.trainer = trainer
        self.run_id = run_id
        self.resume: Resume | None = None
        self.recipe: str | None = None  # as text, if the run has one
        self.saved = 0  # the step of the last checkpoint

    def alone(self, accelerator: Accelerator) -> AbstractContextManager[None]:
        """Inside, no other run writes to this directory."""
        if not accelerator.is_main_process:
            return nullcontext()
        return locked(self.run.path, "Wait for it, or choose another output_dir.")

    def resume_from(self, checkpoint: str | Path | bool) -> Resume:
        """Resume from a checkpoint (True: the newest that can be resumed from). The first process chooses it, and every
        process checks that it belongs to this run."""
        folder = Path(str(self.args.output_dir))
        if isinstance(checkpoint, bool):
            checkpoint = first_decides(lambda: newest_resumable(folder, self.run.path))
        path = Path(checkpoint)
        self.resume = all_succeed(lambda: Resume.of(path, self.manifest()), _NOT_SHARED)
        self.run_id, self.saved = self.resume.run_id, self.resume.state.global_step
        return self.resume

    def manifest(self) -> dict[str, Any]:
        resumed = self.resume.history if self.resume is not None else []
        planned = self.trainer.state.max_steps
        return run_manifest(self.identity, self.args, run_id=self.run_id, planned_steps=planned, resumed=resumed)

    def save_beside(self, folder: RunDirectory) -> None:
        """Add calibration and manifest to a run directory or checkpoint. The manifest comes last: it marks a checkpoint
        as whole."""
        if self.trainer.calibration is not None:
            self.trainer.calibration.save(folder.calibration)
        write_file(folder.manifest, self.manifest())

    def write_card(self, name: str | None, dataset: str | None, tags: list[str]) -> None:
        """Beside the student. `name` may be that of the folder with a recipe's checkpoints."""
        calibration = self.trainer.calibration
        output = Path(str(self.args.output_dir))
        card = model_card(
            self.trainer.identity,
            self.args,
            calibration.mu if calibration else {},
            planned_steps=self.trainer.state.max_steps,
            name=self.run.path.name if name == CHECKPOINTS else name,
            dataset=dataset,
            tags=tags,
            results=results(self.run),
            newest=output / f"{CHECKPOINT}{self.trainer.state.global_step}",
        )
        write_text(output / MODEL_CARD, card)

    @contextmanager
    def whole_checkpoint(self, output_dir: Path, accelerator: Accelerator) -> Iterator[None]:
        """Inside, transformers writes a checkpoint. It counts as whole once its manifest is there: an old one of the
        same name loses its manifest first, and older checkpoints are deleted only when the new one is whole."""
        state = self.trainer.state
        checkpoint = RunDirectory(output_dir / f"{CHECKPOINT}{state.global_step}")
        if accelerator.is_main_process:
            checkpoint.manifest.unlink(missing_ok=True)
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            yield
        except (SafetensorError, RuntimeError, OSError) as error:  # safetensors and torch raise errors of their own
            raise Interrupted(
                f"checkpoint {checkpoint.path} cannot be written ({first_line(error)}). Free some disk space."
            ) from error
        finally:
            self.args.save_total_limit = limit
        accelerator.wait_for_everyone()  # until every process has written its random state
        if accelerator.is_main_process:
            shutil.copyfile(output_dir / MODEL_CARD, checkpoint.path / MODEL_CARD)  # PEFT's is blank
            self.save_beside(checkpoint)
            for old in whole_checkpoints(output_dir, self.run_id)[: -limit if limit else 0]:
                if old != Path(state.best_model_checkpoint or ""):
                    shutil.rmtree(old)
        self.saved = state.global_step

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)  # a resumed state still has its old logging and saving intervals
        if not state.is_world_process_zero:
            return
        set_aside(Path(args.output_dir), self.run_id, state.global_step)
        self.save_beside(self.run)
        if self.recipe is not None:  # also on resume: overrides may have changed it
            write_text(self.run.recipe, self.recipe)
        resumed = state.global_step and self.run.metrics.is_file()
        lines = self.run.metrics.read_text().splitlines() if resumed else []
        kept = [line for line in lines if _step_of(line) <= state.global_step]
        write_text(self.run.metrics, "".join(f"{line}\n" for line in kept))
        for step, file in self.run.recorded().items():
            if step > state.global_step:
                file.unlink()

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            with self.run.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            elsewhere = self.args.calibration_path is not None
            self.bill.trained(self.trainer.unlogged(), calibrated_elsewhere=elsewhere)
            refresh_card(self.run, Path(args.output_dir))

    on_train_end = on_save


def set_aside(output_dir: Path, run_id: str, step: int) -> None:
    """Move away checkpoints that were cut short, of another run, or of later steps: they could be mistaken for the
    newest one of this run. Nothing is deleted."""
    whole, own = whole_checkpoints(output_dir), whole_checkpoints(output_dir, run_id)
    for path in all_checkpoints(output_dir):
        if path not in whole:
            why = "was cut short"
        elif path not in own:
            why = "belongs to another run"
        elif step_of(path) > step:
            why = f"is later than step {step}, from which this run goes on"
        else:
            continue
        home = output_dir / SET_ASIDE
        number = next(n for n in count(1) if not (home / f"{path.name}.{n}").exists())
        home.mkdir(exist_ok=True)
        path.rename(home / f"{path.name}.{number}")
        logger.warning("%s %s: it was moved to %s.", path, why, home / f"{path.name}.{number}")


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return float("inf")  # the last line of a killed run may be incomplete
